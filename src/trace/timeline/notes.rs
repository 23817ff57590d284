//! What a trace says of its slices, for who looks at it.

/// What there is to explain.
pub(super) struct Shown {
    pub stages: u32,
    /// Steps have slices for their kernels, or operations.
    pub parts: bool,
    /// Stages have tracks of their own.
    pub stages_timed: bool,
    /// All of it is from a recording.
    pub recording: bool,
}

pub(super) fn of(shown: &Shown) -> Vec<String> {
    let step = match shown.stages {
        1 => {
            "a step's slice: from the end of the turn that composed it, or from when the step before it was collected if that is later, to the start of the turn that collected it"
        }
        _ => {
            "a slice under 'steps under way': from the end of the turn that composed the step to the start of the turn that collected it, waiting between stages included"
        }
    };
    let mut notes = vec![
        step,
        "a request's track begins when a turn first saw the request; queued until it got a slot, prefill until its first token was collected, decode until its end",
        "turns that found nothing new are not recorded",
    ];
    if shown.parts {
        notes.push("a kernel's slice: from when all kernels before it had ended to when it had itself, as the next one saw it; it stood ready on an SM for early_us before; bytes and floor_us are its operation's, where that has several kernels of all of them");
    }
    if shown.stages_timed {
        notes.push("an arrow: a hand-over of a step to the next stage, or from the last one to the turn that collected it. Stages on GPUs: a slice is from when the step's rows had come, on the first stage from the end of the turn that composed it, to just before it was handed on; gpu_clocks says how the GPUs' clocks were brought together");
    } else if shown.stages > 1 {
        notes.push(match shown.recording {
            true => "a recording does not hold when each stage worked, so stages have no tracks of their own",
            false => "a host that launches stages of several GPUs ahead does not see when each worked, so they have no tracks of their own; Nsight Systems shows them by name",
        });
    }
    notes.into_iter().map(str::to_owned).collect()
}

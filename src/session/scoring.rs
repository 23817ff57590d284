//! The loop of `score`: prompts to the device, in order, until each has ended. Their logits go to the sink.

use super::prefixes::Prefixes;
use super::progress::{Counts, Progress};
use crate::error::{Error, Result};
use crate::runtime::{EndReason, Engine, Event, Logits, Request, Sampling};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const EVENT_POLL: Duration = Duration::from_millis(20);

/// Scores `prompts`, which become requests 0, 1, 2 ... of a fresh device, and calls `ended` as each has
/// delivered its logits. `prefixes`: what may be shared of them, none where all logits are wanted. False: interrupted.
///
/// # Errors
/// The device failed or refused a prompt, or `ended` failed.
pub fn run(
    engine: &mut dyn Engine,
    prompts: &[&[u32]],
    logits: Logits,
    mut prefixes: Prefixes,
    interrupt: &AtomicBool,
    progress: &mut Progress,
    ended: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<bool> {
    let mut counts = Counts::default();
    for prompt in prompts {
        prefixes.expect(prompt, 1);
    }
    let mut next = prompts.iter();
    let mut held = None;
    let mut take = |event: Option<Event>, counts: &mut Counts| -> Result<()> {
        let Some(Event::End {
            request, reason, ..
        }) = event
        else {
            return Ok(());
        };
        if reason != EndReason::Length {
            return Err(Error::Runtime(format!(
                "prompt {request} ended with {reason:?}, expected its logits"
            )));
        }
        counts.rows += 1;
        counts.prompt_tokens += prompts[request as usize].len() as u64;
        ended(request)
    };
    while counts.rows < prompts.len() as u64 {
        if interrupt.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let mut submit = || -> Result<()> {
            while let Some(mut request) = held
                .take()
                .or_else(|| next.next().map(|p| request(p, logits)))
            {
                request.borders = prefixes.borders(&request.prompt);
                if engine.try_submit(&request)?.is_none() {
                    held = Some(request);
                    break;
                }
            }
            Ok(())
        };
        match submit().and_then(|()| engine.next_event(EVENT_POLL)) {
            Ok(event) => take(event, &mut counts)?,
            Err(error) => {
                // What was done when the device failed is still there to be taken.
                while let Ok(event @ Some(_)) = engine.next_event(Duration::ZERO) {
                    take(event, &mut counts)?;
                }
                return Err(error);
            }
        }
        progress.tick(&counts, &engine.status());
    }
    Ok(true)
}

/// The request that scores a prompt.
pub fn request(prompt: &[u32], logits: Logits) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_new_tokens: 0,
        unlimited: false,
        stop_ids: Vec::new(),
        min_new_tokens: 0,
        biases: Vec::new(),
        borders: Vec::new(),
        followers: 0,
        sampling: Sampling::default(),
        timeout: None,
        logits,
    }
}

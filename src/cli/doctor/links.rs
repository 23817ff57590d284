//! What `doctor` says of the links between GPUs.

use super::{Check, Status};
use crate::backend::DeviceSpec;
use crate::backend::cuda::catalogue::Link;
use crate::cli::shown;
use crate::cli::table::Table;
use crate::error::Result;
use std::io::{self, Write};

/// Measures the links between all GPUs that this build can use, unless `device` is the CPU; `None` where there are not two.
pub(super) fn measured(device: &DeviceSpec) -> Option<Result<Vec<Link>>> {
    use crate::backend::cuda::device::links::measure;
    use crate::backend::cuda::driver::gpu::OpenGpu;
    use crate::backend::cuda::driver::machine::probe;
    let driver = match device {
        DeviceSpec::Gpu(_) => probe().ok()?,
        DeviceSpec::Cpu { .. } => return None,
    };
    let usable = driver.gpus.iter().filter(|gpu| gpu.usable().is_ok());
    let ordinals: Vec<u32> = usable.map(|gpu| gpu.ordinal).collect();
    if ordinals.len() < 2 {
        return None;
    }
    let gpus = ordinals.into_iter().map(OpenGpu::new);
    Some(
        gpus.collect::<Result<Vec<_>>>()
            .and_then(|gpus| measure(&gpus)),
    )
}

fn between(link: &Link) -> String {
    format!("cuda:{} to cuda:{}", link.from, link.to)
}

/// What there is to say and to do.
pub(super) fn check(links: &Result<Vec<Link>>) -> Check {
    let links = match links {
        Ok(links) => links,
        Err(why) => {
            let advice = "free memory on the GPUs, or end what else runs there, and ask again";
            return Check::not_ok(
                "links",
                Status::Warn,
                format!("not measured: {}", shown(why)),
                advice,
            );
        }
    };
    let failures = links.iter().flat_map(|link| {
        let named = |why: &String| format!("{}: {why}", between(link));
        link.failures.iter().map(named)
    });
    let failures: Vec<String> = failures.collect();
    if !failures.is_empty() {
        return Check::not_ok(
            "links",
            Status::Warn,
            failures.join("; "),
            "look at nvidia-smi topo -m and nvidia-smi nvlink --status, and for other programs on these GPUs",
        );
    }
    let apart = links.iter().filter(|link| !link.peer_access);
    let apart: Vec<String> = apart.map(between).collect();
    if !apart.is_empty() {
        return Check::not_ok(
            "links",
            Status::Warn,
            format!(
                "no peer access ({}): stages over GPUs of which two neighbours lack it hand all steps on through memory of the host",
                apart.join(", ")
            ),
            "nvidia-smi topo -p2p r says what the driver lets them do; an IOMMU or PCIe access control may forbid it; --parallel replicas needs none",
        );
    }
    Check::ok(
        "links",
        "every GPU reaches the memory of every other, as measured below",
    )
}

/// A row for each link.
pub(super) fn text(links: &[Link], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nlinks")?;
    let mut table = Table::new(&[0, 1, 2, 5]);
    table.row([
        "from",
        "to",
        "peer access",
        "copy GB/s",
        "store seen us",
        "waits in",
    ]);
    for link in links {
        let shown = |value: Option<f64>, unit: f64, digits: usize| match value {
            Some(value) => format!("{:.digits$}", value / unit),
            None => "not measured".to_owned(),
        };
        // Where the words lie that GPUs wait for.
        let (peer_access, words_in) = if link.peer_access {
            ("yes", "memory of the GPU")
        } else {
            ("no", "memory of the host")
        };
        table.row([
            format!("cuda:{}", link.from),
            format!("cuda:{}", link.to),
            peer_access.to_owned(),
            shown(link.copy_bytes_per_s, 1e9, 1),
            shown(link.store_us, 1.0, 2),
            words_in.to_owned(),
        ]);
    }
    table.write("  ", out)
}

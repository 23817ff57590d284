//! What `doctor` says of the links between GPUs.

use super::{Check, Status};
use crate::backend::DeviceSpec;
use crate::backend::cuda::listed::Link;
use crate::cli::table::Table;
use crate::error::Result;
use std::io::{self, Write};

/// The links between all GPUs that this build can use, or why none was measured.
pub type Links = Result<Vec<Link>>;

/// Measures them, unless `device` is the CPU; `None` where there are not two.
pub(super) fn measured(device: &DeviceSpec) -> Option<Links> {
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
pub(super) fn check(links: &Links) -> Check {
    let links = match links {
        Ok(links) => links,
        Err(why) => {
            let advice = "free memory on the GPUs, or end what else runs there, and ask again";
            return Check::not_ok(
                "links",
                Status::Warn,
                format!("not measured: {why}"),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn link(from: u32, to: u32, peer_access: bool) -> Link {
        Link {
            from,
            to,
            peer_access,
            copy_bytes_per_s: Some(389.24e9),
            store_us: Some(1.254),
            failures: vec![],
        }
    }

    #[test]
    fn what_is_wrong_with_a_link_is_named_with_it() {
        let fine = vec![link(0, 1, true), link(1, 0, true)];
        assert_eq!(check(&Ok(fine.clone())).status, Status::Ok);
        let apart = check(&Ok(vec![fine[0].clone(), link(1, 2, false)]));
        assert_eq!(apart.status, Status::Warn);
        assert!(
            apart.detail.contains("(cuda:1 to cuda:2)"),
            "{}",
            apart.detail
        );
        let late = Link {
            store_us: None,
            failures: vec!["no answer".into()],
            ..link(3, 0, true)
        };
        let late = check(&Ok(vec![late]));
        assert_eq!(
            (late.status, &*late.detail),
            (Status::Warn, "cuda:3 to cuda:0: no answer")
        );
        let none = check(&Err(Error::Memory("no room".into())));
        assert!(none.detail.contains("not measured: no room"));
    }

    #[test]
    fn numbers_have_units_and_what_was_not_measured_has_none() {
        let mut unknown = link(1, 0, false);
        unknown.store_us = None;
        let mut out = vec![];
        text(&[link(0, 1, true), unknown], &mut out).unwrap();
        let shown = String::from_utf8(out).unwrap();
        let words = |line: usize| {
            shown
                .lines()
                .nth(line)
                .unwrap()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(words(3), "cuda:0 cuda:1 yes 389.2 1.25 memory of the GPU");
        assert_eq!(
            words(4),
            "cuda:1 cuda:0 no 389.2 not measured memory of the host"
        );
    }
}

//! How long tests run that go on as long as they are let.

use std::time::Duration;

/// TAILGRAPH_FUZZ_SECONDS, or `default` seconds where that is not set.
pub fn time(default: f64) -> Duration {
    let seconds = std::env::var("TAILGRAPH_FUZZ_SECONDS").ok();
    let seconds = seconds.map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("TAILGRAPH_FUZZ_SECONDS={text}: expected seconds"))
    });
    Duration::from_secs_f64(seconds)
}

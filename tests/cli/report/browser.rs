//! Pages of `report` in a real browser, where there is one: every chart is drawn, at every width, and no script fails.

use super::benched::{RATES, benched, change_to};
use super::{html, json_of, measured, number, same, traced};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

const WIDTHS: [u32; 3] = [390, 1280, 1920];

/// What a page has become at one width.
struct Drawn(Value);

/// Ahead of the page: notes what fails there.
const AHEAD: &str = "<script>window.failed = []; addEventListener('error', event => failed.push(event.message));</script>";

/// Behind it: tells the page around it what there is.
const BEHIND: &str = "<script>setTimeout(() => {
  const all = name => [...document.querySelectorAll(name)];
  const blank = canvas => !canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(byte => byte);
  const cells = row => [...row.cells].map(cell => cell.textContent);
  parent.postMessage({ failed, ran: window.ran ?? null, width: innerWidth, needs: document.documentElement.scrollWidth, title: document.title,
    charts: all('figure figcaption').map(caption => caption.firstChild.textContent), canvases: all('canvas').length,
    blank: all('canvas').filter(blank).length, rows: all('tr').map(cells), text: document.querySelector('main').textContent }, '*');
}, 1000);</script>";

/// The page in frames of each of [`WIDTHS`]; `None` where there is no browser.
fn drawn(folder: &Path, page: &str) -> Option<Vec<Drawn>> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let answers = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let Some(browser) = names.into_iter().find(answers) else {
        println!("skipped: found none of {names:?}, so no page was drawn");
        return None;
    };
    let probed = page.replacen("<style>", &format!("{AHEAD}<style>"), 1);
    let probed = probed.replace("</body>", &format!("{BEHIND}</body>"));
    std::fs::write(folder.join("probed.html"), probed).unwrap();
    let frames = WIDTHS.map(|width| {
        format!("<iframe src=\"probed.html\" style=\"width: {width}px; height: 900px\"></iframe>")
    });
    let script = "onmessage = ({ data }) => document.body.append(encodeURIComponent(JSON.stringify(data)) + '\\n');";
    let around = format!(
        "<!DOCTYPE html><body><style>iframe {{ border: 0 }}</style><script>{script}</script>{}",
        frames.concat()
    );
    let outer = folder.join("outer.html");
    std::fs::write(&outer, around).unwrap();
    let ended = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ])
        .args([
            "--virtual-time-budget=8000",
            "--window-size=2000,1000",
            "--dump-dom",
        ])
        .arg(format!(
            "--user-data-dir={}",
            folder.join("profile").display()
        ))
        .arg(format!("file://{}", outer.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8(ended.stdout).unwrap();
    let told = dom.lines().filter_map(|line| {
        let start = line.find("%7B%22failed")?;
        let text = line[start..].split('<').next()?;
        let text = percent_encoding::percent_decode_str(text)
            .decode_utf8()
            .unwrap();
        Some(Drawn(serde_json::from_str(&text).unwrap()))
    });
    let mut told: Vec<Drawn> = told.collect();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(told.len(), WIDTHS.len(), "{browser}: {said}");
    told.sort_by_key(|drawn| drawn.0["width"].as_u64());
    for (drawn, width) in told.iter().zip(WIDTHS) {
        let page = &drawn.0;
        assert_eq!(page["failed"], json!([]), "at {width}");
        assert_eq!(page["ran"], Value::Null, "what a file says is no script");
        assert_eq!(
            (&page["width"], &page["needs"]),
            (&json!(width), &json!(width)),
            "it is no wider"
        );
        let charts = page["charts"].as_array().unwrap().len();
        assert!(charts > 0);
        assert_eq!(
            (&page["canvases"], &page["blank"]),
            (&json!(charts), &json!(0)),
            "at {width}"
        );
    }
    Some(told)
}

impl Drawn {
    /// The row of a table that begins so, and has a column that is called so.
    #[track_caller]
    fn cell(&self, start: &[&str], column: &str) -> &str {
        let mut heads = &Value::Null;
        for row in self.0["rows"].as_array().unwrap() {
            let cells = row.as_array().unwrap();
            if ["launch", "bucket", "way"].contains(&cells[0].as_str().unwrap()) {
                heads = row;
            }
            let place = heads
                .as_array()
                .and_then(|heads| heads.iter().position(|head| head == column));
            if let Some(place) = place
                && start.iter().zip(cells).all(|(a, b)| b == a)
            {
                return cells[place].as_str().unwrap();
            }
        }
        panic!("no {column} of {start:?}")
    }

    fn has_chart(&self, title: &str) -> bool {
        let charts = self.0["charts"].as_array().unwrap();
        charts
            .iter()
            .any(|chart| chart.as_str().unwrap().starts_with(title))
    }
}

#[test]
fn results_are_drawn_and_listed() {
    let folder = tempfile::tempdir().unwrap();
    let page = html(folder.path(), &[&measured()]);
    let Some(widths) = drawn(folder.path(), &page) else {
        return;
    };
    let input = json_of(&measured());
    for page in &widths {
        for result in input.as_array().unwrap() {
            let host = if result["cpu_load"] == 0 {
                "idle"
            } else {
                "32 busy"
            };
            let batch = result["batch"].to_string();
            let start = [result["launch"].as_str().unwrap(), host, &batch];
            same(page.cell(&start, "p50 ms"), &result["median_step_ms"]);
            same(page.cell(&start, "p99.9 ms"), &result["p99.9_step_ms"]);
            same(page.cell(&start, "tokens/s"), &result["avg_ts"]);
            same(page.cell(&start, "floor ms"), &result["floor_ms"]);
            let share =
                result["floor_ms"].as_f64().unwrap() / result["median_step_ms"].as_f64().unwrap();
            assert!((number(page.cell(&start, "of the floor")) - share * 100.0).abs() < 0.06);
        }
        // What an engine did: the whole of the graphs' time is one phase, and what nothing else has is the rest.
        let first = input
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["launch"] == "device-graph")
            .unwrap();
        let of = |key: &str| first[format!("startup_{key}_ms")].as_f64().unwrap();
        let rest = of("engine") - of("load") - of("graphs");
        same(
            page.cell(&["device-graph"], "rest of the engine ms"),
            &json!(rest),
        );
        for title in [
            "Time of a step",
            "Tokens per second",
            "Share of the floor",
            "Inter-token",
            "What each way",
            "Slow steps, with",
            "Phases",
        ] {
            assert!(page.has_chart(title), "{title}");
        }
    }
}

#[test]
fn every_kind_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let prefill = [&["prefill", "-b", "1,2", "-p", "16"], &RATES[..]].concat();
    let serve = [
        "serve",
        "-b",
        "2",
        "-p",
        "6",
        "-n",
        "4",
        "--num-prompts",
        "6",
        "-r",
        "1",
        "--request-rate",
        "50,200,inf",
    ];
    let files = [
        benched(folder.path(), "prefill.json", &prefill),
        benched(folder.path(), "serve.json", &serve),
        traced(folder.path(), &["--kernels"]),
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("profiles/results/launching-h100-2026-11-26.jsonl"),
    ];
    let page = html(
        folder.path(),
        &files.each_ref().map(std::path::PathBuf::as_path),
    );
    let Some(widths) = drawn(folder.path(), &page) else {
        return;
    };
    for page in &widths {
        for title in [
            "Prompt tokens per second",
            "Time to first token (TTFT) by rate of arrival",
            "End-to-end latency by rate of arrival",
            "How long steps took",
            "Operations against the roofline",
            "The first ",
            "Requests, the first 5",
            "Sequences running over the run",
            "Time of a step",
        ] {
            assert!(page.has_chart(title), "{title}");
        }
        let served = &json_of(&files[1])[0];
        same(
            page.cell(&["cpu", "idle", "50"], "TTFT p99 ms"),
            &served["p99_ttft_ms"],
        );
        let first: Value = serde_json::from_str(
            std::fs::read_to_string(&files[3])
                .unwrap()
                .lines()
                .next()
                .unwrap(),
        )
        .unwrap();
        same(
            page.cell(
                &[first["technique"].as_str().unwrap(), "idle"],
                "p99 \u{b5}s",
            ),
            &first["p99_step_us"],
        );
    }
}

/// Values that nobody has checked: zeros, none at all, out of all bounds, of another type, and names that are scripts.
#[test]
fn odd_values_break_no_page_and_run_no_script() {
    let folder = tempfile::tempdir().unwrap();
    let odd = "</script><script>window.ran = 1</script><img src=x onerror='window.ran = 2'>\u{0}\u{1b}[2J\u{202e}\u{2028}";
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 3] = [
        ("zeros", |row| {
            for (key, value) in row.as_object_mut().unwrap() {
                if value.is_number()
                    && (key.contains("ttft")
                        || key.contains("floor")
                        || key.contains("startup")
                        || key.contains("p99.9"))
                {
                    *value = 0.into();
                }
            }
        }),
        ("bounds", |row| {
            let far = if row["batch"] == 1 { 1.7e308 } else { 1e-308 };
            for key in [
                "avg_ts",
                "median_ttft_ms",
                "median_step_ms",
                "p99_step_ms",
                "floor_ms",
                "startup_engine_ms",
            ] {
                row[key] = far.into();
            }
            row["batch"] = u32::MAX.into();
        }),
        ("absent", |row| {
            row.as_object_mut()
                .unwrap()
                .retain(|key, _| !key.contains("_ms") || key.ends_with("_step_ms"))
        }),
    ];
    for (name, change) in changes {
        let file = change_to(&measured(), &folder.path().join("odd.json"), &|row| {
            change(row);
            for key in [
                "model_filename",
                "gpu_info",
                "command",
                "dtype",
                "test_time",
            ] {
                row[key] = odd.into();
            }
            row["launch"] = format!("{odd}{}", row["launch"]).into();
            row[odd] = odd.into();
        });
        let page = html(folder.path(), &[&file]);
        let Some(widths) = drawn(folder.path(), &page) else {
            return;
        };
        let text = widths[0].0["text"].as_str().unwrap();
        assert!(
            text.contains("<img src=x") && text.contains("\\u{202e}"),
            "{name}: it is shown as text"
        );
        assert!(
            !text.contains(['\u{0}', '\u{1b}', '\u{202e}', '\u{2028}']),
            "{name}"
        );
    }
}

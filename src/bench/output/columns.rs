//! What a column of a table is, and the columns that several tables have.

use super::{digits, number};
use serde_json::Value;

/// A column of a table. One where no result has a cell is left out.
#[derive(Clone, Copy)]
pub struct Column {
    pub title: &'static str,
    cell: Cell,
    /// Where there is no room for all columns, those of the highest rank go first; 0 stays.
    pub rank: u8,
    /// What was asked for: where all results have the same, it is said above the table.
    pub is_setting: bool,
    /// A cell has a `*` where the GPU's clocks were not steady.
    is_marked: bool,
}

/// What a result has in a column, by the names of its fields.
#[derive(Clone, Copy)]
enum Cell {
    Field(&'static str),
    /// A fraction as a percentage.
    Share(&'static str),
    /// Two fields with text between.
    Pair([&'static str; 3]),
    /// The median and the p99 of a latency.
    Latency(&'static str, &'static str),
    /// Two numbers that are one field.
    Interval(&'static str),
    Text(fn(&Value) -> Option<String>),
}

impl Column {
    pub const fn field(title: &'static str, name: &'static str) -> Self {
        Self::of(title, Cell::Field(name))
    }

    /// What was asked for, rather than what came of it.
    pub const fn setting(title: &'static str, name: &'static str) -> Self {
        Self {
            is_setting: true,
            ..Self::field(title, name)
        }
    }

    pub const fn share(title: &'static str, name: &'static str) -> Self {
        Self::of(title, Cell::Share(name))
    }

    pub const fn pair(title: &'static str, parts: [&'static str; 3]) -> Self {
        Self::of(title, Cell::Pair(parts))
    }

    pub const fn latency(title: &'static str, median: &'static str, p99: &'static str) -> Self {
        Self::of(title, Cell::Latency(median, p99))
    }

    pub const fn interval(title: &'static str, name: &'static str) -> Self {
        Self::of(title, Cell::Interval(name)).rank(9)
    }

    pub const fn text(title: &'static str, text: fn(&Value) -> Option<String>) -> Self {
        Self::of(title, Cell::Text(text))
    }

    const fn of(title: &'static str, cell: Cell) -> Self {
        Self {
            title,
            cell,
            rank: 0,
            is_setting: false,
            is_marked: false,
        }
    }

    pub const fn marked(self) -> Self {
        Self {
            is_marked: true,
            ..self
        }
    }

    pub const fn rank(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    /// The cell of a result.
    pub fn cell(&self, row: &Value) -> Option<String> {
        let cell = self.unmarked(row)?;
        let is_marked = self.is_marked && is_unsteady(row);
        Some(if is_marked { cell + "*" } else { cell })
    }

    fn unmarked(&self, row: &Value) -> Option<String> {
        let short = |value: &Value| Some(digits(value.as_f64()?, 3));
        match self.cell {
            Cell::Field(name) => field(row, name),
            Cell::Share(name) => Some(format!("{:.1}%", row[name].as_f64()? * 100.0)),
            Cell::Pair([first, between, second]) => {
                Some(field(row, first)? + between + &field(row, second)?)
            }
            Cell::Latency(median, p99) => Some(short(&row[median])? + "/" + &short(&row[p99])?),
            Cell::Interval(name) => Some(short(&row[name][0])? + " to " + &short(&row[name][1])?),
            Cell::Text(text) => text(row),
        }
    }
}

/// Whether the GPU's clocks were not steady while this was measured.
pub fn is_unsteady(row: &Value) -> bool {
    row["clocks_unsteady"] == true
}

fn field(row: &Value, name: &str) -> Option<String> {
    match &row[name] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Number(value) if value.is_f64() => value.as_f64().map(number),
        value => Some(value.to_string()),
    }
}

/// The range of lengths where prompts' are drawn.
const PROMPT: Column = Column {
    is_setting: true,
    ..Column::text("n_prompt", |row| {
        match (&row["n_prompt_min"], &row["n_prompt_max"]) {
            (Value::Number(shortest), Value::Number(longest)) => {
                Some(format!("{shortest}-{longest}"))
            }
            _ => field(row, "n_prompt"),
        }
    })
};

/// What `bench` is asked to measure.
const SETTINGS: &[Column] = &[
    Column::setting("kind", "kind"),
    Column::setting("launch", "launch"),
    Column::setting("dtype", "dtype"),
    Column::setting("weights", "weights"),
    Column::setting("activations", "activations"),
    Column::setting("buckets", "bucket_file"),
    Column::setting("kernel file", "kernel_file"),
    Column::setting("batch", "batch"),
    PROMPT,
    Column::setting("shared prefix", "shared_prefix"),
    Column::setting("prefix groups", "prefix_groups"),
    Column::setting("n_gen", "n_gen"),
    Column::setting("req/s asked", "request_rate"),
    Column::setting("in flight", "max_concurrency"),
    Column::setting("cpu load", "cpu_load"),
];

/// What runs cost beside time, and where their rows went.
const COSTS: &[Column] = &[
    Column::field("s", "duration").rank(8),
    Column::field("experts/layer", "experts_hit_mean").rank(7),
    Column::share("most chosen", "expert_share_max").rank(7),
    Column::field("launches/token", "launches_per_token").rank(8),
    Column::field("CPU s/1k tokens", "host_cpu_s_per_1k_tokens").rank(8),
    Column::field("J/token", "energy_j_per_token").rank(8),
];

/// The columns of results, of which `measured` are their kind's.
pub fn results(measured: &[Column]) -> Vec<Column> {
    [SETTINGS, measured, COSTS].concat()
}

/// The columns of what each way to launch adds to the bare graph, behind all settings but the kind, which is one.
pub fn over_bare() -> Vec<Column> {
    [&SETTINGS[1..], OVER_BARE].concat()
}

const OVER_BARE: &[Column] = &[
    Column::text("over bare us", |row| {
        let over = digits(row["over_bare_us"].as_f64()?, 3);
        Some(if row["over_bare_measurable"] == false {
            "not measurable".to_owned()
        } else {
            over
        })
    }),
    Column::field("spread", "over_bare_spread_us").rank(1),
    Column::field("launch", "over_bare_launch_us"),
    Column::field("gap", "over_bare_gap_us").rank(2),
    Column::field("scheduler", "over_bare_scheduler_us").rank(2),
    Column::field("first run", "over_bare_first_run_us").rank(3),
    Column::field("kernels", "over_bare_kernels_us").rank(3),
    Column::field("unexplained", "over_bare_unexplained_us").rank(1),
];

/// How engines started.
pub const STARTS: &[Column] = &[
    Column::setting("launch", "launch"),
    Column::setting("dtype", "dtype"),
    Column::setting("weights", "weights"),
    Column::setting("activations", "activations"),
    Column::setting("buckets", "bucket_file"),
    Column::setting("kernel file", "kernel_file"),
    Column::setting("max seqs", "max_seqs"),
    Column::field("model ms", "startup_model_ms").rank(1),
    Column::field("load ms", "startup_load_ms"),
    Column::field("graphs ms", "startup_graphs_ms").rank(2),
    Column::field("engine ms", "startup_engine_ms"),
    Column::field("first token ms", "startup_first_token_ms"),
];

/// The columns of a comparison.
pub fn compared() -> Vec<Column> {
    [SUBJECT, SETTINGS, COMPARED].concat()
}

const SUBJECT: &[Column] = &[
    Column::setting("model", "model"),
    Column::setting("replicas", "replicas"),
    Column::setting("stages", "stage_devices"),
];

const COMPARED: &[Column] = &[
    Column::field("figure", "figure"),
    Column::field("A", "a"),
    Column::field("B", "b"),
    Column::field("B / A", "ratio"),
    Column::pair("95% interval", ["low", " to ", "high"]).rank(1),
    Column::field("verdict", "verdict"),
];

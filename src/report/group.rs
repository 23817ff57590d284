//! Results of `bench` of all files together, as parts of a page: those that belong side by side in one.

use super::bench::Row;
use crate::bench::{Kind, row};

/// Results of one kind on one machine that one part shows; their other fields make its axes and series. At least one.
pub type Group<'a> = Vec<&'a Row>;

/// Items that are alike together, in the order of each first.
pub fn by<T>(items: &[T], alike: impl Fn(&T, &T) -> bool) -> Vec<Vec<&T>> {
    let mut all: Vec<Vec<&T>> = vec![];
    for item in items {
        match all.iter_mut().find(|with| alike(with[0], item)) {
            Some(with) => with.push(item),
            None => all.push(vec![item]),
        }
    }
    all
}

/// In the order of the files. Files are shown together where they measured different things of the same; where two of
/// them measured the same thing, each stands for itself.
pub fn groups(rows: &[Row]) -> Vec<Group<'_>> {
    let mut groups = vec![];
    for group in by(rows, together) {
        let again = |n: usize| group[..n].iter().any(|row| row.same_place(group[n]));
        if (1..group.len()).any(again) {
            let files = by(&group, |a, b| a.file == b.file).into_iter();
            groups.extend(files.map(|file| file.into_iter().copied().collect()));
        } else {
            groups.push(group);
        }
    }
    groups
}

/// Whether two results are of the same machine, model and lengths.
fn together(a: &Row, b: &Row) -> bool {
    let subject = |row: &Row| {
        let built = (&row.subject.build_profile, &row.subject.model_filename);
        let machine = (row.device().to_owned(), row.subject.host_cores);
        (row.workload.kind, machine, built.0.clone(), built.1.clone())
    };
    let lengths = |row: &Row| {
        let row::Choice {
            dtype,
            bucket_file,
            kernel_file,
            ..
        } = row.choice.clone();
        let lengths = (row.workload.n_prompt, row.workload.n_gen);
        (dtype, bucket_file, kernel_file, lengths)
    };
    let same = match a.workload.kind {
        Kind::Decode | Kind::Serve => lengths(a) == lengths(b),
        Kind::Prefill | Kind::Score => true,
    };
    same && subject(a) == subject(b)
}

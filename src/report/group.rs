//! Results of `bench` of all files together, as parts of a page: those that belong side by side in one.

use super::bench::Row;
use crate::bench::Kind;

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
        let machine = (row.device().to_owned(), row.host_cores);
        let built = (row.build_profile.clone(), row.model_filename.clone());
        (row.kind, machine, built)
    };
    let same = match a.kind {
        Kind::Decode | Kind::Serve => {
            (
                &a.dtype,
                &a.bucket_file,
                &a.kernel_file,
                a.n_prompt,
                a.n_gen,
            ) == (
                &b.dtype,
                &b.bucket_file,
                &b.kernel_file,
                b.n_prompt,
                b.n_gen,
            )
        }
        Kind::Prefill | Kind::Score => true,
    };
    same && subject(a) == subject(b)
}

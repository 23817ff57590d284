//! Lists of numbers as llama-bench takes them: values and ranges with commas between, a range being `FIRST-LAST`,
//! `FIRST-LAST+STEP` or `FIRST-LAST*FACTOR`.

/// More values than this are a mistake.
const MOST: usize = 4096;

/// The values of `text`, in its order: `1,8,32`, `1-4` (1 2 3 4), `32-96+32` (32 64 96), `1-256*4` (1 4 16 64 256).
///
/// # Errors
/// What was found and what was expected.
pub fn parse(text: &str) -> Result<List, String> {
    let mut values = Vec::new();
    for part in text.split(',') {
        one(part.trim(), &mut values)?;
    }
    Ok(List(values))
}

/// At least one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List(pub Vec<u32>);

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| {
        format!("found '{text}', expected a number, or a range such as 1-8, 32-96+32 or 1-256*2")
    })
}

fn one(part: &str, values: &mut Vec<u32>) -> Result<(), String> {
    let Some((first, rest)) = part.split_once('-').filter(|(first, _)| !first.is_empty()) else {
        values.push(number(part)?);
        return Ok(());
    };
    let (last, times, add) = match (rest.split_once('+'), rest.split_once('*')) {
        (Some((last, step)), _) => (last, 1, number(step)?),
        (None, Some((last, factor))) => (last, number(factor)?, 0),
        (None, None) => (rest, 1, 1),
    };
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(format!("{part}: expected a range that ascends"));
    }
    if add == 0 && (times < 2 || first == 0) {
        return Err(format!("{part}: the step leads nowhere"));
    }
    let next = |value: &u32| value.checked_mul(times)?.checked_add(add);
    let range = std::iter::successors(Some(first), next).take_while(|&value| value <= last);
    values.extend(range.take(MOST + 1));
    if values.len() > MOST {
        return Err(format!("{part}: more than {MOST} values"));
    }
    Ok(())
}

/// Tokens of each prompt, drawn from a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Length {
    pub shortest: u32,
    pub longest: u32,
}

/// At least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lengths(pub Vec<Length>);

/// Reads what [`parse`] does, but `100-2000` is one value: lengths that are drawn from all of these.
///
/// # Errors
/// Fails as [`parse`] does, and for a length of 0.
pub fn lengths(text: &str) -> Result<Lengths, String> {
    let mut lengths = Vec::new();
    for part in text.split(',').map(str::trim) {
        let plain = |(_, longest): &(&str, &str)| !longest.contains(['+', '*']);
        if let Some((shortest, longest)) = part.split_once('-').filter(plain) {
            lengths.push(Length {
                shortest: number(shortest)?,
                longest: number(longest)?,
            });
        } else {
            lengths.extend(parse(part)?.0.into_iter().map(|value| Length {
                shortest: value,
                longest: value,
            }));
        }
    }
    for Length { shortest, longest } in &lengths {
        if *shortest == 0 || shortest > longest {
            return Err(format!(
                "found lengths from {shortest} to {longest}, expected at least 1 and a range that ascends"
            ));
        }
    }
    Ok(Lengths(lengths))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_drawn_from_plain_ranges() {
        let found = lengths("7, 100-2000,32-96+32").unwrap().0;
        let found: Vec<_> = found.iter().map(|l| (l.shortest, l.longest)).collect();
        assert_eq!(found, [(7, 7), (100, 2000), (32, 32), (64, 64), (96, 96)]);
        for wrong in ["0", "0-4", "5-4", "", "1-x", "1-4-5"] {
            let message = lengths(wrong).unwrap_err();
            assert!(message.contains("expected"), "{wrong}: {message}");
        }
    }

    #[test]
    fn lists_and_ranges() {
        let values = |text: &str| parse(text).unwrap().0;
        assert_eq!(values("1,8,32"), [1, 8, 32]);
        assert_eq!(values("1-4"), [1, 2, 3, 4]);
        assert_eq!(values("32-100+32"), [32, 64, 96]);
        assert_eq!(values("1-256*4"), [1, 4, 16, 64, 256]);
        assert_eq!(values("7, 1-2 ,5-5"), [7, 1, 2, 5]);
        assert_eq!(
            values("4294967294-4294967295*2"),
            [4_294_967_294],
            "ends before it wraps"
        );
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for (text, expected) in [
            ("", "found ''"),
            ("1,,2", "found ''"),
            ("a", "found 'a'"),
            ("-1", "found '-1'"),
            ("8-1", "ascends"),
            ("1-8+0", "leads nowhere"),
            ("1-8*1", "leads nowhere"),
            ("0-8*2", "leads nowhere"),
            ("1-100000", "more than"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }
}

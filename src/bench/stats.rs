//! Means, quantiles with their intervals, and whether two sets of repeats differ.

use serde::Serialize;
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, StudentsT};
use statrs::statistics::Statistics;

/// A set of values in short.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Summary {
    pub count: usize,
    pub mean: f64,
    /// Standard deviation of a sample (n - 1); 0 of a single value.
    pub sd: f64,
    pub median: f64,
}

/// `None` of no values.
pub fn summary(values: &[f64]) -> Option<Summary> {
    if values.is_empty() {
        return None;
    }
    Some(Summary {
        count: values.len(),
        mean: values.mean(),
        sd: if values.len() > 1 {
            values.std_dev()
        } else {
            0.0
        },
        median: quantile(&sorted(values), 0.5),
    })
}

/// `None` of no values.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.geometric_mean())
}

pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The quantile of ascending values, between neighbours by a straight line (numpy's default, which vLLM's figures use). At least one.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (below, above) = (at.floor() as usize, at.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * (at - at.floor())
}

/// The 95% interval of a quantile by order statistics, whatever the values' distribution, as if they were independent: the
/// number of values below the quantile is binomial. `None` where there are too few: 6 for the median, 368 for the p99.
pub fn interval(sorted: &[f64], share: f64) -> Option<[f64; 2]> {
    let below = Binomial::new(share, sorted.len() as u64).ok()?;
    // Each end is wrong by at most 2.5%.
    let low = below.inverse_cdf(0.025) as usize;
    let high = below.inverse_cdf(0.975) as usize;
    Some([*sorted.get(low.checked_sub(1)?)?, *sorted.get(high)?])
}

/// How b compares with a: the ratio of their geometric means, with its 95% interval and the probability of one as
/// far from 1 were there no difference. Welch's t-test on the logarithms, so the two may vary differently.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Ratio {
    pub ratio: f64,
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub p: Option<f64>,
}

/// Repeats of each side below which [`welch`] has no answer: of two, the variation is not known.
pub const LEAST_REPEATS: usize = 3;

/// `None` where either side has fewer than [`LEAST_REPEATS`] values, or one that is not above 0; or all of
/// a side are the same.
pub fn welch(a: &[f64], b: &[f64]) -> Option<Ratio> {
    let usable = |values: &[f64]| {
        values.len() >= LEAST_REPEATS
            && values.iter().all(|&value| value > 0.0 && value.is_finite())
    };
    if !usable(a) || !usable(b) {
        return None;
    }
    let logs = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<_>>();
    let (a, b) = (summary(&logs(a))?, summary(&logs(b))?);
    let difference = b.mean - a.mean;
    let error = |side: Summary| side.sd.powi(2) / side.count as f64;
    let (error_a, error_b) = (error(a), error(b));
    let variance = error_a + error_b;
    // Welch and Satterthwaite.
    let freedom = variance.powi(2)
        / (error_a.powi(2) / (a.count - 1) as f64 + error_b.powi(2) / (b.count - 1) as f64);
    let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
    let width = student.inverse_cdf(0.975) * variance.sqrt();
    Some(Ratio {
        ratio: difference.exp(),
        low: Some((difference - width).exp()),
        high: Some((difference + width).exp()),
        p: Some(2.0 * student.sf(difference.abs() / variance.sqrt())),
    })
}

/// Which of these probabilities show a difference, at most 5% of such lists wrongly naming any (Holm).
pub fn holm(p: &[f64]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut shown = vec![false; p.len()];
    for (rank, &index) in order.iter().enumerate() {
        if p[index] > 0.05 / (p.len() - rank) as f64 {
            break;
        }
        shown[index] = true;
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64, within: f64) {
        assert!(
            (found - expected).abs() <= within * expected.abs().max(1e-12),
            "{found}, expected {expected}"
        );
    }

    #[test]
    fn summaries_of_known_values() {
        let s = summary(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        near(s.mean, 5.0, 1e-12);
        near(s.sd, (32.0_f64 / 7.0).sqrt(), 1e-12);
        near(s.median, 4.5, 1e-12);
        assert_eq!(summary(&[3.0]).unwrap().sd, 0.0);
        assert_eq!(summary(&[]), None);
    }

    #[test]
    fn quantiles_are_numpys() {
        let values = sorted(&[4.0, 1.0, 3.0, 2.0]);
        near(quantile(&values, 0.0), 1.0, 1e-12);
        near(quantile(&values, 0.5), 2.5, 1e-12);
        near(quantile(&values, 0.9), 3.7, 1e-12);
        near(quantile(&values, 1.0), 4.0, 1e-12);
    }

    /// Ranks from tables of the sign test, and by P(X < 368) = 1 - 0.99^368 = 0.9752 for the p99.
    #[test]
    fn intervals_are_those_of_the_binomial() {
        let of = |count: u32, share| {
            let values: Vec<f64> = (1..=count).map(f64::from).collect();
            interval(&values, share)
        };
        for (count, ranks) in [(6, [1.0, 6.0]), (10, [2.0, 9.0]), (20, [6.0, 15.0])] {
            assert_eq!(of(count, 0.5), Some(ranks), "{count}");
        }
        assert_eq!(of(100, 0.5), Some([40.0, 61.0]));
        assert_eq!((of(5, 0.5), of(0, 0.5)), (None, None));
        assert_eq!(
            (of(367, 0.99), of(368, 0.99).map(|at| at[1])),
            (None, Some(368.0))
        );
    }

    /// Means 0 and 1 of logarithms with variances 1 and 4, three and four of them: by hand
    /// t = 1 / sqrt(1/3 + 4/4), freedom = (4/3)^2 / ((1/3)^2 / 2 + 1 / 3).
    #[test]
    fn welch_by_hand() {
        let exp = |values: &[f64]| values.iter().map(|v| v.exp()).collect::<Vec<_>>();
        let a = exp(&[-1.0, 0.0, 1.0]);
        let spread = 6_f64.sqrt();
        let b = exp(&[1.0 - spread, 1.0, 1.0, 1.0 + spread]);
        let found = welch(&a, &b).unwrap();
        near(found.ratio, 1_f64.exp(), 1e-12);
        let error = (4.0_f64 / 3.0).sqrt();
        // Student's t at that freedom, integrated by Simpson's rule.
        near(found.p.unwrap(), 0.429574056, 1e-6);
        near(found.low.unwrap().ln(), 1.0 - 2.64478606 * error, 1e-6);
        near(found.high.unwrap().ln(), 1.0 + 2.64478606 * error, 1e-6);
    }

    #[test]
    fn welch_has_no_answer_to_too_little() {
        assert_eq!(welch(&[1.0, 1.1], &[1.0, 1.1, 1.2]), None);
        assert_eq!(welch(&[0.0, 1.0, 1.0], &[1.0, 1.1, 1.2]), None);
        assert_eq!(welch(&[2.0; 3], &[3.0; 3]), None);
    }

    #[test]
    fn holm_asks_more_of_many() {
        assert_eq!(holm(&[0.04]), [true]);
        assert_eq!(holm(&[0.04, 0.5]), [false, false]);
        assert_eq!(holm(&[0.04, 0.02]), [true, true]);
        assert_eq!(holm(&[0.03, 0.001, 0.03]), [false, true, false]);
        assert!(holm(&[]).is_empty());
    }
}

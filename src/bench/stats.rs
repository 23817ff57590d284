//! Means, quantiles, and whether two sets of repeats differ.

/// Of a set of values.
#[derive(Debug, Clone, Copy, PartialEq)]
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
    let count = values.len();
    let mean = values.iter().sum::<f64>() / count as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let sd = match count {
        1 => 0.0,
        _ => (squares / (count - 1) as f64).sqrt(),
    };
    let median = quantile(&sorted(values), 0.5);
    Some(Summary {
        count,
        mean,
        sd,
        median,
    })
}

/// `None` of no values.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    Some(summary(&logs)?.mean.exp())
}

pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Of ascending values, between neighbours by a straight line (numpy's default, which vLLM's figures use). At least one.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (below, above) = (at.floor() as usize, at.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * (at - at.floor())
}

/// How b compares with a: the ratio of their geometric means, with its 95% interval and the probability of one as
/// far from 1 were there no difference. Welch's t-test on the logarithms, so the two may vary differently.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
    pub p: f64,
}

/// Repeats of each side below which [`welch`] has no answer: of two, the variation is not known.
pub const LEAST_REPEATS: usize = 3;

/// `None` where either side has fewer than [`LEAST_REPEATS`] values, or one that is not above 0.
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
    if variance == 0.0 {
        let p = if difference == 0.0 { 1.0 } else { 0.0 };
        let ratio = difference.exp();
        return Some(Ratio {
            ratio,
            low: ratio,
            high: ratio,
            p,
        });
    }
    // Welch and Satterthwaite.
    let freedom = variance.powi(2)
        / (error_a.powi(2) / (a.count - 1) as f64 + error_b.powi(2) / (b.count - 1) as f64);
    let width = t_quantile(0.975, freedom) * variance.sqrt();
    Some(Ratio {
        ratio: difference.exp(),
        low: (difference - width).exp(),
        high: (difference + width).exp(),
        p: t_two_sided(difference / variance.sqrt(), freedom),
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

/// Probability of a t with `freedom` degrees of freedom at least as far from 0 as `t`.
fn t_two_sided(t: f64, freedom: f64) -> f64 {
    incomplete_beta(freedom / (freedom + t * t), freedom / 2.0, 0.5)
}

/// The t below which `share` (above 0.5) lies.
fn t_quantile(share: f64, freedom: f64) -> f64 {
    let tail = 2.0 * (1.0 - share);
    let (mut low, mut high) = (0.0, 1.0);
    while t_two_sided(high, freedom) > tail {
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if t_two_sided(middle, freedom) > tail {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// Regularised: I_x(a, b), by its continued fraction (DLMF 8.17.22), evaluated where that converges fast.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let front =
        (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp() / a;
    // Lentz's method.
    let tiny = 1e-300;
    let away = |value: f64| if value.abs() < tiny { tiny } else { value };
    let (mut c, mut d) = (1.0, 1.0 / away(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for m in 1..500 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = fraction;
        for term in [even, odd] {
            d = 1.0 / away(1.0 + term * d);
            c = away(1.0 + term / c);
            fraction *= c * d;
        }
        if (fraction / before - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * fraction
}

/// ln of gamma(x), x above 0: Stirling's series (DLMF 5.11.1) beyond 10, reached by recurrence.
fn ln_gamma(x: f64) -> f64 {
    if x < 10.0 {
        return ln_gamma(x + 1.0) - x.ln();
    }
    let half_ln_tau = 0.5 * std::f64::consts::TAU.ln();
    let (inverse, square) = (1.0 / x, 1.0 / (x * x));
    let series =
        inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0)));
    (x - 0.5) * x.ln() - x + half_ln_tau + series
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

    #[test]
    fn t_is_that_of_the_tables() {
        for (freedom, expected) in [
            (1.0, 12.706_205),
            (2.0, 4.302_653),
            (4.0, 2.776_445),
            (10.0, 2.228_139),
            (120.0, 1.979_930),
        ] {
            near(t_quantile(0.975, freedom), expected, 1e-6);
        }
        // Cauchy: P(|t| > 1) is a half; and two degrees of freedom have 1 - t / sqrt(t^2 + 2).
        near(t_two_sided(1.0, 1.0), 0.5, 1e-12);
        near(t_two_sided(3.0, 2.0), 1.0 - 3.0 / 11_f64.sqrt(), 1e-10);
    }

    #[test]
    fn gamma_of_known_arguments() {
        near(ln_gamma(5.0), 24_f64.ln(), 1e-12);
        near(ln_gamma(0.5), 0.5 * std::f64::consts::PI.ln(), 1e-12);
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
        let freedom: f64 = (16.0 / 9.0) / (1.0 / 18.0 + 1.0 / 3.0);
        let error = (4.0_f64 / 3.0).sqrt();
        near(found.p, t_two_sided(1.0 / error, freedom), 1e-12);
        near(
            found.low.ln(),
            1.0 - t_quantile(0.975, freedom) * error,
            1e-9,
        );
        assert!(found.p > 0.3 && found.low < 1.0 && found.high > 1.0);
    }

    #[test]
    fn welch_has_no_answer_to_too_little() {
        assert_eq!(welch(&[1.0, 1.1], &[1.0, 1.1, 1.2]), None);
        assert_eq!(welch(&[0.0, 1.0, 1.0], &[1.0, 1.1, 1.2]), None);
        let same = welch(&[2.0; 3], &[2.0; 3]).unwrap();
        assert_eq!((same.ratio, same.p), (1.0, 1.0));
        let other = welch(&[2.0; 3], &[3.0; 3]).unwrap();
        assert_eq!(other.p, 0.0);
    }

    /// Of equal sets, one in twenty differs at 5%.
    #[test]
    fn welch_is_wrong_as_often_as_it_says() {
        let mut random = crate::bench::workload::Random::new(5, 0);
        let mut draw = || {
            let normal: f64 = (0..12).map(|_| random.uniform()).sum::<f64>() - 6.0;
            (1.0 + 0.01 * normal).max(0.5)
        };
        let mut wrong = 0;
        for _ in 0..4000 {
            let a: Vec<f64> = (0..5).map(|_| draw()).collect();
            let b: Vec<f64> = (0..5).map(|_| draw()).collect();
            wrong += u32::from(welch(&a, &b).unwrap().p < 0.05);
        }
        assert!((140..260).contains(&wrong), "{wrong} of 4000");
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

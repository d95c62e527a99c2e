//! Sizes as people type them: MiB as a plain number, or a number with a unit.

/// The units by their first letter, in KiB. A unit is a power of 1024, with or without the `i`, as in other tools for
/// containers.
const UNITS: [(char, u128); 4] = [('k', 1), ('m', 1 << 10), ('g', 1 << 20), ('t', 1 << 30)];
/// What may follow the first letter of a unit.
const ENDINGS: [&str; 4] = ["", "b", "i", "ib"];
/// Most digits before and after the point of a number with a unit. More cannot be a size, and these cannot overflow.
const MAX_DIGITS: usize = 12;

/// The forms of a size, for the end of an error.
pub const FORMS: &str = "give a number of MiB such as 4096, or a number with a unit such as 4G or 512M";

/// A size in MiB: `4096`, `512M`, `4GiB`, `1.5g`. A fraction of a MiB is left out.
///
/// # Errors
/// If it is no size, or a size of less than one MiB that is not zero.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[number.len()..].to_ascii_lowercase();
    let number = number.trim_end();
    if unit.is_empty() {
        return if all_digits(number) { number.parse().map_err(|_| not_a_size()) } else { Err(not_a_size()) };
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let usable = |digits: &str| digits.len() <= MAX_DIGITS && all_digits(digits);
    let is_unit = |first: char| unit.strip_prefix(first).is_some_and(|ending| ENDINGS.contains(&ending));
    let (_, kib) = UNITS.into_iter().find(|(first, _)| is_unit(*first)).ok_or_else(not_a_size)?;
    if !usable(whole) || !usable(fraction) {
        return Err(not_a_size());
    }
    let value = |digits: &str| digits.parse::<u128>().map_err(|_| not_a_size());
    let parts = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| not_a_size())?);
    let scaled = (value(whole)? * parts + value(fraction)?) * kib;
    let mib = scaled / parts / 1024;
    if mib == 0 && scaled > 0 {
        return Err(format!("that is less than 1 MiB; {FORMS}"));
    }
    u64::try_from(mib).map_err(|_| not_a_size())
}

fn all_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn not_a_size() -> String {
    format!("that is no size; {FORMS}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_of_mib_or_has_a_unit() {
        for (text, mib) in [
            ("0", 0),
            ("4096", 4096),
            ("512M", 512),
            ("512mb", 512),
            ("4G", 4096),
            ("4g", 4096),
            ("4GB", 4096),
            ("4GiB", 4096),
            ("4Gi", 4096),
            ("4 GiB", 4096),
            ("1.5g", 1536),
            ("0.5G", 512),
            ("2048k", 2),
            ("1T", 1 << 20),
            ("1.3G", 1331),
            ("0G", 0),
        ] {
            assert_eq!(parse(text), Ok(mib), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_both_forms() {
        let long = "9".repeat(5000);
        let odd = [
            "",
            " ",
            "-1",
            "-4G",
            "+4",
            "1.5",
            "G",
            ".5G",
            "4.G",
            "1.2.3G",
            "4X",
            "4Gb1",
            "4GG",
            "1e3",
            "٤G",
            "4,5G",
            "none",
            "512K",
            "0.0001M",
            "99999999999999999999",
            "999999999999999999T",
            long.as_str(),
        ];
        for text in odd {
            let error = parse(text).unwrap_err();
            assert!(error.contains("4096") && error.contains("4G"), "{text}: {error}");
        }
    }
}

//! Hosts: an address, or a name in its one lower-case ASCII form.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};
use serde::{Serialize, Serializer};
use unicode_security::{GeneralSecurityProfile, MixedScript};

use super::refusal::{Part, Quoted, Refusal, RefusalCode};

/// Longest host that is parsed, before and after mapping. Names in ASCII are at most 253 bytes long.
pub const MAX_HOST_BYTES: usize = 1024;

/// A host in its canonical form.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// Lower case, A-labels, no dot at the end.
    Name(Box<str>),
    Address(IpAddr),
}

/// What a person should know about a name before they allow it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "warning")]
pub enum HostWarning {
    /// The name has characters beyond ASCII; `reads` is its Unicode form.
    Unicode { reads: String },
    /// One label mixes characters of several scripts, which honest names rarely do.
    MixedScripts { label: String },
    /// The name has characters that names rarely use.
    UnusualLetters { label: String },
    /// The name looks like another name.
    LooksLike { name: String },
}

impl Host {
    /// Parses a name, an IPv4 address, or an IPv6 address with or without brackets.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let refuse = |code, why: String, next: &str| Err(Refusal::new(Part::Host, code, why, next));
        if text.is_empty() {
            return refuse(RefusalCode::Empty, "there is no host".to_owned(), "name one");
        }
        if text.len() > MAX_HOST_BYTES {
            return refuse(
                RefusalCode::TooLong,
                format!("the host is longer than {MAX_HOST_BYTES} bytes"),
                "use its name",
            );
        }
        let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if bracketed.is_some() || text.contains(':') {
            return ipv6(bracketed.unwrap_or(text));
        }
        let name = ascii_name(text)?;
        if let Ok(address) = name.parse::<Ipv4Addr>() {
            // If the text was not an address before the mapping (of wide digits, or of a dot at the end), refuse it.
            if text != name {
                return refuse_ipv4(text);
            }
            return Ok(Self::Address(address.into()));
        }
        if ends_in_a_number(&name) {
            return refuse_ipv4(text);
        }
        Ok(Self::Name(name.into()))
    }

    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Address(_) => None,
        }
    }

    /// The Unicode form of the name, if it differs from its canonical form.
    #[must_use]
    pub fn unicode(&self) -> Option<String> {
        let name = self.name()?;
        if !name.split('.').any(|label| label.starts_with("xn--")) {
            return None;
        }
        let (text, valid) = Uts46::new().to_unicode(name.as_bytes(), AsciiDenyList::URL, Hyphens::Allow);
        valid.is_ok().then(|| text.into_owned()).filter(|text| text != name)
    }

    /// What is unusual about the name, by itself and in comparison with trusted names.
    pub fn warnings<'a>(&self, trusted: impl IntoIterator<Item = &'a str>) -> Vec<HostWarning> {
        let Some(name) = self.name() else { return Vec::new() };
        let reads = self.unicode();
        let mut warnings = Vec::new();
        if let Some(reads) = &reads {
            warnings.push(HostWarning::Unicode { reads: reads.clone() });
            for label in reads.split('.').filter(|label| !label.is_ascii()) {
                if !label.is_single_script() {
                    warnings.push(HostWarning::MixedScripts { label: label.to_owned() });
                }
                if !label.chars().all(|char| char == '-' || char.identifier_allowed()) {
                    warnings.push(HostWarning::UnusualLetters { label: label.to_owned() });
                }
            }
        }
        let skeleton = skeleton(reads.as_deref().unwrap_or(name));
        let twin = trusted.into_iter().find(|other| {
            let other_reads = Self::Name((*other).into()).unicode();
            *other != name && self::skeleton(other_reads.as_deref().unwrap_or(other)) == skeleton
        });
        match twin {
            Some(twin) => warnings.push(HostWarning::LooksLike { name: twin.to_owned() }),
            // A name beyond ASCII that looks like a name in ASCII, trusted or not.
            None if reads.is_some() && skeleton.is_ascii() => {
                warnings.push(HostWarning::LooksLike { name: skeleton });
            }
            None => {}
        }
        warnings
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl Serialize for Host {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The name with each confusable character replaced by the representative of its class (UTS 39).
fn skeleton(name: &str) -> String {
    unicode_security::confusable_detection::skeleton(name).collect()
}

/// The name in lower-case ASCII without the dot of the root.
fn ascii_name(text: &str) -> Result<String, Refusal> {
    let refuse = |code, why: String, next: &str| Err(Refusal::new(Part::Host, code, why, next));
    if let Some(char) = text.chars().find(|char| char.is_control() || char.is_whitespace()) {
        return refuse(
            RefusalCode::ControlCharacter,
            format!("the host {} has the character {}", Quoted(text), char.escape_unicode()),
            "remove it",
        );
    }
    if text.contains('@') {
        return refuse(
            RefusalCode::Userinfo,
            "the host comes with a user name or password before an @".to_owned(),
            "send credentials in a header",
        );
    }
    if text.contains('%') {
        return refuse(
            RefusalCode::BadPercentEncoding,
            format!("the host {} is percent-encoded", Quoted(text)),
            "write the name itself",
        );
    }
    let invalid = || {
        Refusal::new(
            Part::Host,
            RefusalCode::Invalid,
            format!("{} is not a name that can be looked up", Quoted(text)),
            "use labels of letters, digits and hyphens with single dots between them, at most 63 bytes each and 253 in all",
        )
    };
    // One dot at the end is the root and means the same name; UTS 46 maps other full stops to it first.
    let mapped = Uts46::new()
        .to_ascii(text.as_bytes(), AsciiDenyList::URL, Hyphens::Allow, DnsLength::VerifyAllowRootDot)
        .map_err(|_| invalid())?;
    let name = mapped.strip_suffix('.').unwrap_or(&mapped);
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || !name.bytes().all(plain) || name.split('.').any(str::is_empty) {
        return Err(invalid());
    }
    // The mapping must be stable. Another parser that maps the name again must get the name that was decided on.
    let again = Uts46::new().to_ascii(name.as_bytes(), AsciiDenyList::URL, Hyphens::Allow, DnsLength::Verify);
    if again.ok().as_deref() != Some(name) {
        return Err(invalid());
    }
    Ok(name.to_owned())
}

/// Whether address parsers would read the name as a number: the last label is decimal or hexadecimal.
fn ends_in_a_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let hexadecimal =
        last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    hexadecimal || last.bytes().all(|byte| byte.is_ascii_digit())
}

fn refuse_ipv4(text: &str) -> Result<Host, Refusal> {
    Err(Refusal::new(
        Part::Host,
        RefusalCode::Ipv4Notation,
        format!("{} is a number that programs read as different IPv4 addresses", Quoted(text)),
        "write four decimal numbers without leading zeros, such as 192.0.2.1",
    ))
}

fn ipv6(text: &str) -> Result<Host, Refusal> {
    if text.contains('%') {
        return Err(Refusal::new(
            Part::Host,
            RefusalCode::Ipv6Zone,
            format!("{} names a network interface", Quoted(text)),
            "use an address that needs none",
        ));
    }
    match text.parse::<Ipv6Addr>() {
        Ok(address) => Ok(Host::Address(address.into())),
        Err(_) => Err(Refusal::new(
            Part::Host,
            RefusalCode::Invalid,
            format!("{} is not an IPv6 address", Quoted(text)),
            "write it as in [2001:db8::1]",
        )),
    }
}

/// Parses a port in the form that URLs and headers use.
pub fn parse_port(text: &str) -> Result<u16, Refusal> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    match text.parse::<u16>() {
        Ok(port) if plain => Ok(port),
        _ => Err(Refusal::new(
            Part::Port,
            RefusalCode::Invalid,
            format!("{} is not a port", Quoted(text)),
            "use a number from 1 to 65535 without leading zeros",
        )),
    }
}

/// Parses `host`, `host:port`, `[address]` or `[address]:port`.
pub fn parse_authority(text: &str) -> Result<(Host, Option<u16>), Refusal> {
    if text.contains('@') {
        // The text before the @ may be a credential, so the message does not repeat it.
        return Err(Refusal::new(
            Part::Host,
            RefusalCode::Userinfo,
            "the authority has a user name or password before an @",
            "send credentials in a header",
        ));
    }
    let end_of_host = match text.strip_prefix('[') {
        Some(_) => text.find(']').map_or(text.len(), |at| at + 1),
        None => text.find(':').unwrap_or(text.len()),
    };
    let (host, rest) = text.split_at(end_of_host);
    let port = match rest.strip_prefix(':') {
        Some(port) => Some(parse_port(port)?),
        None if rest.is_empty() => None,
        None => {
            return Err(Refusal::new(
                Part::Host,
                RefusalCode::Invalid,
                format!("{} is not a host and a port", Quoted(text)),
                "write HOST or HOST:PORT",
            ));
        }
    };
    Ok((Host::parse(host)?, port))
}

//! Which hosts a policy could permit at all, before any request is made. Whether a bay may look a name up depends on
//! it.

use jiff::Timestamp;

use crate::canonical::Host;
use crate::compile::{CompiledPolicy, is_host_itself};
use crate::index::Wanted;
use crate::pattern::Ports;
use crate::rule::{Kind, Layer, Matcher, Outcome};

/// All kinds of traffic.
const KINDS: [Kind; 4] = [Kind::Http, Kind::Tcp, Kind::Passthrough, Kind::GitSsh];

/// Whether some request to this host could be permitted, on any port and of any kind. It may return true too often: it
/// compares only the hosts of rules, and each request is decided on separately.
#[must_use]
pub fn could_permit_host(policy: &CompiledPolicy, host: &Host, now: Timestamp) -> bool {
    if is_host_itself(host) {
        return !policy.reach.is_empty();
    }
    KINDS.into_iter().any(|kind| policy.could_permit_kind(host, kind, now))
}

impl CompiledPolicy {
    fn could_permit_kind(&self, host: &Host, kind: Kind, now: Timestamp) -> bool {
        let speaks = |matcher: &Matcher| {
            matcher.kind.includes(kind) && matcher.hosts.iter().any(|pattern| pattern.permits(host))
        };
        let mut granted = false;
        self.grant_index.visit(host, &Wanted::Everything, &mut |at| {
            let grant = &self.grants[at].grant;
            granted |= now < grant.expires && speaks(&grant.matcher);
        });
        // If every layer inherits its outcome from the others, no layer decides, and the answer is no.
        let mut spoken = false;
        for layer in &self.layers {
            let (mut permitted, mut denied) = (false, false);
            layer.index.visit(host, &Wanted::Everything, &mut |at| {
                let rule = &layer.rules[at];
                if now >= rule.expires {
                    return;
                }
                match rule.outcome {
                    Outcome::Allow | Outcome::Ask => permitted |= speaks(&rule.matcher),
                    Outcome::Deny => denied |= leaves_nothing(&rule.matcher, host),
                }
            });
            if denied {
                return false;
            }
            let silent = layer.otherwise.outcome();
            let asked = silent == Some(Outcome::Ask);
            let granted = granted && layer.layer != Layer::Host;
            if silent.is_some() && !(permitted || asked || granted) {
                return false;
            }
            spoken |= silent.is_some() || permitted;
        }
        spoken
    }
}

/// Whether a deny covers everything that could be sent to the host.
fn leaves_nothing(matcher: &Matcher, host: &Host) -> bool {
    matcher.kind == Kind::Any
        && matches!(matcher.ports, Ports::Any)
        && matcher.hosts.iter().any(|pattern| pattern.forbids(host))
}

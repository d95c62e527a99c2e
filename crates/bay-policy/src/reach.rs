//! Which hosts a policy can lead to at all, before anything is asked for there: for whoever looks names up.

use jiff::Timestamp;

use crate::canonical::Host;
use crate::compile::CompiledPolicy;
use crate::index::Wanted;
use crate::pattern::Ports;
use crate::rule::{Kind, Layer, Matcher, Outcome};

/// The kinds of traffic there are.
const KINDS: [Kind; 4] = [Kind::Http, Kind::Tcp, Kind::Passthrough, Kind::GitSsh];

/// Whether there can be a request to this host, on any port and of any kind, that is not denied. It errs on the side of
/// yes: rules are looked at for their hosts only, and each request is decided on by itself.
#[must_use]
pub fn could_name(policy: &CompiledPolicy, host: &Host, now: Timestamp) -> bool {
    KINDS.into_iter().any(|kind| policy.could_reach(host, kind, now))
}

impl CompiledPolicy {
    fn could_reach(&self, host: &Host, kind: Kind, now: Timestamp) -> bool {
        let speaks = |matcher: &Matcher| {
            matcher.kind.includes(kind) && matcher.hosts.iter().any(|pattern| pattern.permits(host))
        };
        let mut granted = false;
        self.grant_index.visit(host, &Wanted::Everything, &mut |at| {
            let grant = &self.grants[at].grant;
            granted |= now < grant.expires && speaks(&grant.matcher);
        });
        // Layers that all leave the word to the others say nothing together, and that is a no.
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

/// Whether a deny is for everything that could be sent to the host.
fn leaves_nothing(matcher: &Matcher, host: &Host) -> bool {
    matcher.kind == Kind::Any
        && matches!(matcher.ports, Ports::Any)
        && matcher.hosts.iter().any(|pattern| pattern.forbids(host))
}

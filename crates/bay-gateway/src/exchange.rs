//! One HTTP request: canonical form, decision, a new request to the origin, and its answer.

use std::convert::Infallible;
use std::sync::Arc;

use bay_policy::push::commands;
use bay_policy::{CanonicalRequest, Connection, Host, Outcome, RawRequest, Refusal, Scheme, canonicalise};
use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, HOST, HeaderValue, SEC_WEBSOCKET_EXTENSIONS,
};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::answers;
use crate::bay_connection::BayConnection;
use crate::body::{AnswerBody, BodyError, Metered, Source, full};
use crate::decider::{Ending, Failure, Refused, Ruling};
use crate::forms;
use crate::headers::{self, Upgrade};
use crate::limits::{LOOK_WITHIN, MAX_LOOK_BYTES};
use crate::origin::Lease;
use crate::progress::{Direction, Progress};
use crate::registry;
use crate::scrub::{
    self, Coding, CodingError, Guesses, Patterns, Renewal, Scrubbed, Stream, Tally, Unreadable,
};
use crate::secrets::{Misuse, Sent};
use crate::sight::Sight;
use crate::state::GatewayState;
use crate::tunnel;
use crate::upstream::{DialError, own_words, seconds};

/// A connection of the bay on which HTTP is spoken.
#[derive(Clone)]
pub(crate) struct HttpConnection {
    pub(crate) connection: BayConnection,
    sni: Option<String>,
    scheme: Scheme,
}

type Answer = Response<AnswerBody>;

/// How an answer is scrubbed. `carried` are the counters of guesses for the secrets that the request carried.
struct Hiding {
    patterns: Arc<Patterns>,
    renewal: Renewal,
    carried: Vec<Arc<Guesses>>,
}

const SENTINEL_IN_BODY: &str = "the body contains the sentinel of a secret, which is not allowed there";

pub(crate) async fn serve(
    connection: Arc<HttpConnection>,
    request: Request<Incoming>,
) -> Result<Answer, Infallible> {
    let for_registry = registry::is_client(&request);
    Ok(match connection.answer(request).await {
        Ok(answer) => answer,
        Err(refused) if for_registry => registry::with_errors(refused).await,
        Err(refused) => refused,
    })
}

impl HttpConnection {
    pub(crate) fn new(connection: BayConnection, sni: Option<String>, scheme: Scheme) -> Self {
        Self { connection, sni, scheme }
    }

    /// `Err` is an answer of the gateway. `Ok` is the origin's, or the gateway's if that one cannot be passed on.
    async fn answer(&self, mut request: Request<Incoming>) -> Result<Answer, Answer> {
        let gateway = &self.connection.gateway;
        let (host, port) = (&self.connection.host, self.connection.port);
        let Ok(place) = gateway.requests.clone().try_acquire_owned() else {
            let id =
                self.connection.refuse(&Refused::TooMany { destination: self.connection.caller.local }).await;
            let why = "the bay has as many requests under way as it may have; try again when some have ended";
            return Err(answers::plain(StatusCode::SERVICE_UNAVAILABLE, &id, why));
        };
        let two_hosts = request.headers().get_all(HOST).iter().count() > 1;
        if two_hosts || headers::two_lengths(request.headers()) {
            let why = "the request has two lengths, or two Host headers";
            let id = self.connection.refuse(&Refused::Protocol { host, port, why }).await;
            let mut answer = answers::plain(StatusCode::BAD_REQUEST, &id, why);
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            return Err(answer);
        }
        let upgrade = headers::upgrade(request.method(), request.version(), request.headers());
        if let Upgrade::Refused(why) = upgrade {
            let id = self.connection.refuse(&Refused::Upgrade { host, port, why }).await;
            return Err(answers::plain(StatusCode::FORBIDDEN, &id, why));
        }
        let from_bay = matches!(upgrade, Upgrade::WebSocket { .. }).then(|| hyper::upgrade::on(&mut request));
        let (mut head, body) = request.into_parts();
        let mut body = Source::new(body, !head.headers.contains_key(EXPECT));
        let named = authorities(&head.uri, head.version, &head.headers);
        let mut headers = headers::for_origin(std::mem::take(&mut head.headers));
        let canonical = self.canonical(&head, &named, &headers, from_bay.is_some());
        let canonical = match canonical {
            Ok(canonical) => with_refs(canonical, &headers, &mut body).await,
            Err(refusal) => {
                let id = self.connection.refuse(&Refused::Form { host, port, refusal: &refusal }).await;
                return Err(answers::malformed(&id, &refusal));
            }
        };

        let mut secrets = gateway.decider().secrets();
        let mut attachments = match secrets.examine(&canonical, &headers) {
            Ok(attachments) => attachments,
            Err(misuse) => return Err(self.misused(&misuse).await),
        };
        let wanted = attachments.names(&secrets);
        let canonical = canonical.with_secrets(wanted.iter().map(|(name, _)| name.clone()).collect());

        let busy: Arc<dyn Send + Sync> = Arc::new((self.connection.busy.clone(), place));
        let decided_in = gateway.policy.version();
        let names = wanted.iter().map(|(name, _)| name.clone()).collect();
        let mut sight = Sight::new(&headers, &mut body, names);
        let ruling = gateway.decider().decide(&self.connection.caller, &canonical, &mut sight).await;
        let progress = Progress::new(&gateway.policy, ruling.id.clone(), canonical.clone(), decided_in, busy);
        if ruling.decision.outcome != Outcome::Allow {
            progress.end(Ending::Refused);
            let (what, explanation) = (canonical.to_string(), ruling.explanation.as_deref());
            return Err(match &ruling.waiting {
                Some(waiting) => answers::waiting(&ruling, waiting, &what),
                None => answers::decided(&ruling.id, &what, &ruling.decision, explanation),
            });
        }

        // A person may have taken minutes to decide. The uses of the secrets may have changed meanwhile.
        let known_in = gateway.policy.version();
        let now = gateway.decider().secrets();
        if !Arc::ptr_eq(&now, &secrets) {
            let again = now.examine(&canonical, &headers);
            match again {
                Ok(again) if again.names(&now) == wanted => (secrets, attachments) = (now, again),
                _ => return Err(without_secret(&progress, "the secrets changed meanwhile; send it again")),
            }
        }

        // An origin may answer before it has read the body, so the scan in transit could come too late.
        if let Some(mut watch) = secrets.watch(&canonical, self.tell_misuse())
            && !body.begins_well(&mut watch).await
        {
            progress.end_failed(Failure::Sentinel);
            return Err(answers::plain(StatusCode::FORBIDDEN, &ruling.id, SENTINEL_IN_BODY));
        }

        let form = forms::scan(&canonical, &headers);
        let refused = match &form {
            Ok(Some(form)) if !body.begins_as_decided(form.clone()).await => Some(forms::OVERRIDE_IN_FORM),
            Ok(_) => None,
            Err(why) => Some(*why),
        };
        if let Some(why) = refused {
            progress.end_failed(Failure::Override);
            return Err(answers::plain(StatusCode::FORBIDDEN, &ruling.id, why));
        }

        secrets.prepare(&host.to_string(), &mut headers);
        let (mut target, mut attached) = (None, Vec::new());
        if !attachments.is_empty() {
            progress.set_secrets(wanted.clone());
            let values = gateway.decider().attach(&ruling.id, &wanted).await;
            attached = values.map_err(|why| without_secret(&progress, &why))?;
            let filled = attachments.fill(&canonical, &mut headers, &attached);
            let why = "the value of the secret does not fit into its place";
            target = filled.ok_or_else(|| without_secret(&progress, why))?;
        }
        let sent = Sent::all(&wanted, &attached);
        let patterns = secrets.patterns(&host.to_string(), &sent);
        let patterns = patterns.map_err(|error| without_secret(&progress, &error.to_string()))?;
        let hiding = patterns.map(|patterns| Hiding {
            patterns,
            renewal: gateway.policy.renewal(host, sent, known_in),
            carried: secrets.carried(&attachments),
        });

        let may_be_http2 = head.version == Version::HTTP_2;
        let body =
            Metered::new(body, Direction::Out, progress.clone(), self.connection.gateway.timeouts.body_idle)
                .with_watch(secrets.watch(&canonical, self.tell_misuse()))
                .with_form(form.ok().flatten());
        let mut sending = Sending { gateway, ruling: &ruling, canonical: &canonical, progress: &progress };
        let offered = headers.contains_key(SEC_WEBSOCKET_EXTENSIONS) && hiding.is_none();
        let outgoing = Outgoing { headers, body, target, websocket: from_bay.is_some() };
        let (response, lease) = sending.send(outgoing, may_be_http2).await.map_err(|error| {
            progress.end_failed(error.failure());
            match &error {
                DialError::Address(refusal) => answers::address(&ruling.id, refusal),
                DialError::Revoked => answers::plain(StatusCode::FORBIDDEN, &ruling.id, &error.to_string()),
                DialError::Failed { failure, why } => match progress.noted().unwrap_or(*failure) {
                    Failure::Sentinel => answers::plain(StatusCode::FORBIDDEN, &ruling.id, SENTINEL_IN_BODY),
                    Failure::Override => {
                        answers::plain(StatusCode::FORBIDDEN, &ruling.id, forms::OVERRIDE_IN_FORM)
                    }
                    failure => answers::failed(&ruling.id, failure, why),
                },
            }
        })?;
        match (upgrade, from_bay) {
            (Upgrade::WebSocket { accept }, Some(from_bay))
                if response.status() == StatusCode::SWITCHING_PROTOCOLS =>
            {
                let handshake = Handshake { accept: &accept, offered, from_bay };
                Ok(self.websocket(response, handshake, &progress, hiding))
            }
            _ => Ok(self.pass_on(response, lease, progress, hiding)),
        }
    }

    /// Refuses a request that contains a misused sentinel or a foreign credential.
    async fn misused(&self, misuse: &Misuse) -> Answer {
        let id = self
            .connection
            .refuse(&Refused::Secret { host: &self.connection.host, port: self.connection.port, misuse })
            .await;
        answers::plain(StatusCode::FORBIDDEN, &id, &misuse.to_string())
    }

    /// A callback that has a sentinel in a body recorded as misuse.
    fn tell_misuse(&self) -> impl Fn(Misuse) + Send + Sync + 'static {
        let connection = self.clone();
        move |misuse| {
            let connection = connection.clone();
            tokio::spawn(async move { connection.misused(&misuse).await });
        }
    }

    fn canonical(
        &self,
        head: &Parts,
        named: &[String],
        headers: &HeaderMap,
        websocket: bool,
    ) -> Result<CanonicalRequest, Refusal> {
        let destination = self.connection.host.to_string();
        // HTTP/2 has the authority apart from the target. Over HTTP/1.1 an absolute URL keeps it.
        let target = match (head.version, head.uri.path_and_query()) {
            (Version::HTTP_2, Some(target)) => target.as_str().to_owned(),
            _ => head.uri.to_string(),
        };
        let authorities: Vec<&str> = named.iter().map(String::as_str).collect();
        let headers: Vec<&str> = headers.keys().map(http::HeaderName::as_str).collect();
        canonicalise(&RawRequest {
            connection: Connection {
                destination: &destination,
                port: self.connection.port,
                sni: self.sni.as_deref(),
            },
            scheme: self.scheme,
            method: head.method.as_str(),
            target: &target,
            authorities: &authorities,
            headers: &headers,
            websocket,
        })
    }

    /// Passes an answer on while it arrives.
    fn pass_on(
        &self,
        response: Response<Incoming>,
        lease: Lease,
        progress: Arc<Progress>,
        hiding: Option<Hiding>,
    ) -> Answer {
        let (mut head, body) = response.into_parts();
        if head.status.is_informational() {
            progress.end_failed(Failure::BadAnswer);
            let why = format!("the origin changed the protocol without being asked ({})", head.status);
            return answers::failed(progress.id(), Failure::BadAnswer, &why);
        }
        let mut coding = Coding::Identity;
        let mut tally =
            Tally::answer(hiding.as_ref().map(|hiding| hiding.carried.clone()).unwrap_or_default());
        if let Some(Hiding { patterns, .. }) = &hiding {
            match scrub::open(patterns, &mut head, &mut tally) {
                Ok((found, _)) => coding = found,
                Err(unreadable) => return unread(&progress, &unreadable),
            }
        }
        progress.set_status(head.status.as_u16());
        let idle = self.connection.gateway.timeouts.body_idle;
        let whole = body.is_end_stream();
        let body = Source::new(body, false);
        let body =
            Metered::new(body, Direction::In, progress.clone(), idle).when_complete(|| lease.give_back());
        let mut answer = Response::new(match hiding {
            _ if whole => {
                drop(body);
                full("")
            }
            Some(Hiding { patterns, renewal, .. }) => {
                let scrubbed = Scrubbed::new(body, patterns, coding, Arc::default());
                let scrubbed = scrubbed.renewed_by(renewal).tallied(tally);
                scrubbed.map_err(move |error| recorded(&progress, error)).boxed_unsync()
            }
            None => body.boxed_unsync(),
        });
        *answer.status_mut() = head.status;
        *answer.headers_mut() = headers::for_bay(head.headers);
        answer
    }

    /// Passes the frames of a WebSocket on, after both ends have agreed on it.
    fn websocket(
        &self,
        mut response: Response<Incoming>,
        handshake: Handshake<'_>,
        progress: &Arc<Progress>,
        hiding: Option<Hiding>,
    ) -> Answer {
        let Handshake { accept, offered, from_bay } = handshake;
        if !headers::is_websocket(response.headers(), accept) {
            progress.end_failed(Failure::BadAnswer);
            let why = "the origin's answer to the WebSocket handshake is not the one that its key asks for";
            return answers::failed(progress.id(), Failure::BadAnswer, why);
        }
        if headers::has_unoffered_extension(response.headers(), offered) {
            progress.end_failed(Failure::BadAnswer);
            let why =
                "the origin's answer to the WebSocket handshake has an extension that it was not offered";
            return answers::failed(progress.id(), Failure::BadAnswer, why);
        }
        if let Some(Hiding { patterns, carried, .. }) = &hiding {
            let mut tally = Tally::answer(carried.clone());
            scrub::headers(patterns, response.headers_mut(), &mut tally);
            if let Err(unreadable) = scrub::readable_yet(patterns, &tally) {
                return unread(progress, &unreadable);
            }
        }
        progress.set_status(response.status().as_u16());
        let from_origin = hyper::upgrade::on(&mut response);
        let (progress, changes) = (progress.clone(), self.connection.gateway.policy.changes());
        let idle = self.connection.gateway.timeouts.tunnel_idle;
        let within = self.connection.gateway.timeouts.handshake;
        let scrub = hiding.map(|Hiding { patterns, renewal, carried }| {
            Stream::new(patterns).renewed_by(renewal).tallied(Tally::connection(carried))
        });
        tokio::spawn(async move {
            match timeout(within, async { tokio::try_join!(from_bay, from_origin) }).await {
                Ok(Ok((bay, origin))) => {
                    let (bay, origin) = (TokioIo::new(bay), TokioIo::new(origin));
                    tunnel::run(bay, origin, progress, idle, changes, scrub).await;
                }
                _ => progress.end_failed(Failure::Broken),
            }
        });
        let mut answer = Response::new(full(""));
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *answer.headers_mut() = headers::for_bay(std::mem::take(response.headers_mut()));
        headers::say_websocket(answer.headers_mut());
        answer
    }
}

/// Ends the request because the head of its answer cannot be passed on.
fn unread(progress: &Progress, why: &Unreadable) -> Answer {
    let failure = match why {
        Unreadable::Guessed | Unreadable::Weak => Failure::SecretShown,
        _ => Failure::BadAnswer,
    };
    progress.end_failed(failure);
    answers::failed(progress.id(), failure, &why.to_string())
}

/// Records an answer that was cut because it contained too many guesses of a secret, or a value that is easy to guess.
fn recorded(progress: &Progress, error: BodyError) -> BodyError {
    if matches!(error, BodyError::Coding(CodingError::Guessed | CodingError::Weak)) {
        progress.end_failed(Failure::SecretShown);
    }
    error
}

/// Adds the refs and options of a git push, which are at the beginning of the body, to the request. They stay unknown
/// if the body is encoded or they do not arrive in time.
async fn with_refs(canonical: CanonicalRequest, headers: &HeaderMap, body: &mut Source) -> CanonicalRequest {
    let encoded = headers.contains_key(CONTENT_ENCODING);
    if encoded || !canonical.is_push() {
        return canonical;
    }
    body.look(MAX_LOOK_BYTES as u64, LOOK_WITHIN).await;
    match commands(&body.looked_at(MAX_LOOK_BYTES).0) {
        Some(commands) => canonical.with_commands(commands),
        None => canonical,
    }
}

/// Ends a request whose secret cannot be attached, or whose answer could not be scrubbed. It is not sent.
fn without_secret(progress: &Progress, why: &str) -> Answer {
    progress.end_failed(Failure::Secret);
    answers::failed(progress.id(), Failure::Secret, why)
}

/// Every name that the request gives its host.
fn authorities(uri: &Uri, version: Version, headers: &HeaderMap) -> Vec<String> {
    let mut named = Vec::new();
    if version == Version::HTTP_2
        && let Some(authority) = uri.authority()
    {
        named.push(authority.to_string());
    }
    // A name that is not text stays invalid and is refused later.
    let hosts = headers.get_all(HOST).iter();
    named.extend(hosts.map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned()));
    named
}

/// The WebSocket handshake that the client asked for.
struct Handshake<'a> {
    /// The value of `Sec-WebSocket-Accept` that the origin must send.
    accept: &'a str,
    /// Whether the request to the origin offers the client's extensions.
    offered: bool,
    from_bay: OnUpgrade,
}

/// The parts of the request to the origin.
struct Outgoing {
    headers: HeaderMap,
    body: Metered,
    /// Set if the target contains a secret.
    target: Option<Zeroizing<String>>,
    websocket: bool,
}

/// An allowed request that is being sent to its origin.
struct Sending<'a> {
    gateway: &'a GatewayState,
    ruling: &'a Ruling,
    canonical: &'a CanonicalRequest,
    progress: &'a Arc<Progress>,
}

impl Sending<'_> {
    async fn send(
        &mut self,
        outgoing: Outgoing,
        may_be_http2: bool,
    ) -> Result<(Response<Incoming>, Lease), DialError> {
        let gateway = self.gateway;
        let decision = &self.ruling.decision;
        let mut lease = gateway.origins.lease(decision, self.canonical, may_be_http2, false).await?;
        let mut request = self.request(outgoing, lease.is_http2())?;
        loop {
            if !self.progress.still_allowed() {
                return Err(DialError::Revoked);
            }
            let limit = gateway.timeouts.answer;
            let sent = {
                let sending = lease.send(request);
                tokio::pin!(sending);
                loop {
                    match timeout(limit, &mut sending).await {
                        Ok(sent) => break sent,
                        // The origin may be silent during a long upload.
                        Err(_) if self.progress.idle() < limit => {}
                        Err(_) => {
                            let why =
                                format!("{} did not answer within {}", self.canonical.host(), seconds(limit));
                            return Err(DialError::failed(Failure::AnswerTimeout, why));
                        }
                    }
                }
            };
            match sent {
                Ok(response) => return Ok((response, lease)),
                Err(mut error) => match error.take_message() {
                    // The kept connection closed before hyper wrote anything of this request to it.
                    Some(unsent) if lease.reused => {
                        let was_http2 = lease.is_http2();
                        lease = gateway.origins.lease(decision, self.canonical, may_be_http2, true).await?;
                        request = unsent;
                        if was_http2 != lease.is_http2() {
                            let why = format!("{} changed its protocol", self.canonical.host());
                            return Err(DialError::failed(Failure::Broken, why));
                        }
                    }
                    _ => return Err(broken(self.canonical.host(), error.error())),
                },
            }
        }
    }

    /// The request to the origin. Its method, target and host come from the canonical form.
    fn request(&self, outgoing: Outgoing, http2: bool) -> Result<Request<Metered>, DialError> {
        let http = self.canonical.http();
        let authority = self.canonical.authority();
        let target = outgoing.target.unwrap_or_else(|| Zeroizing::new(self.canonical.target()));
        let scheme = http.map_or(Scheme::Https, |http| http.scheme());
        let uri = match http2 {
            true => Zeroizing::new(format!("{}://{authority}{}", scheme.as_str(), *target)),
            false => target,
        };
        let unsendable =
            |why: String| DialError::failed(Failure::BadAnswer, format!("it cannot be sent: {why}"));
        let mut request = Request::new(outgoing.body);
        *request.method_mut() = http
            .map_or("GET", |http| http.sent_method())
            .parse()
            .map_err(|error: http::method::InvalidMethod| unsendable(error.to_string()))?;
        *request.uri_mut() =
            uri.parse().map_err(|error: http::uri::InvalidUri| unsendable(error.to_string()))?;
        *request.headers_mut() = outgoing.headers;
        if http2 {
            *request.version_mut() = Version::HTTP_2;
        } else {
            let host = HeaderValue::from_str(&authority).map_err(|error| unsendable(error.to_string()))?;
            request.headers_mut().insert(HOST, host);
        }
        if outgoing.websocket {
            headers::say_websocket(request.headers_mut());
            request.headers_mut().remove(CONTENT_LENGTH);
        }
        Ok(request)
    }
}

fn broken(host: &Host, error: &hyper::Error) -> DialError {
    let failure = if error.is_parse() || error.is_parse_too_large() {
        Failure::BadAnswer
    } else if error.is_timeout() {
        Failure::AnswerTimeout
    } else {
        Failure::Broken
    };
    DialError::failed(failure, format!("{host}: {}", own_words(error)))
}

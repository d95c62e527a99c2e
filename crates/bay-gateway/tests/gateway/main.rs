//! A client, the gateway and an origin, with real sockets and real TLS on loopback.
#![forbid(unsafe_code)]

mod attacks;
mod dns;
mod faults;
mod grpc;
mod guesses;
mod host_itself;
mod http;
mod lab;
mod overrides;
mod postgres;
mod secrets;
mod sight;
mod ssh;
mod ssh_attacks;
mod ssh_openssh;
mod tunnels;

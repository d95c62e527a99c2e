//! A web server whose certificate is signed by the bay's gateway: `https://origin.test/`.
//!
//! It gives every request the same answer and records its path. A client that does not trust it sends no request.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// The authority's certificate, in the test's directory.
pub(crate) const AUTHORITY: &str = "authority.pem";
const CHAIN: &str = "origin.pem";
const KEY: &str = "origin.key";
const ASKED: &str = "asked";
/// Not a loopback address, because Docker trusts those anyway.
const ADDRESS: &str = "192.0.2.1";
/// Longest head and body of a request that is read.
const MAX_REQUEST: u64 = 1 << 20;

/// Makes an authority and the server's certificate: signed by that authority (`own`), or by another of the same name.
pub(crate) fn certify(dir: &Path, own: bool) {
    let mut wanted = CertificateParams::new(Vec::new()).unwrap();
    wanted.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    wanted.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    wanted.distinguished_name.push(DnType::CommonName, "Gateway of  a Bay under Test");
    let key = KeyPair::generate().unwrap();
    std::fs::write(dir.join(AUTHORITY), wanted.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(wanted, if own { key } else { KeyPair::generate().unwrap() });
    let mut leaf = CertificateParams::new(vec!["origin.test".to_owned()]).unwrap();
    leaf.distinguished_name.push(DnType::CommonName, "origin.test");
    leaf.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    leaf.use_authority_key_identifier_extension = true;
    // Browsers accept no certificate with a long lifetime.
    let now = jiff::Timestamp::now().as_second();
    let day = |offset: i64| {
        let date =
            jiff::Timestamp::from_second(now + offset * 86_400).unwrap().to_zoned(jiff::tz::TimeZone::UTC);
        rcgen::date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    (leaf.not_before, leaf.not_after) = (day(-2), day(30));
    let key = KeyPair::generate().unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    std::fs::write(dir.join(CHAIN), leaf.pem()).unwrap();
    std::fs::write(dir.join(KEY), key.serialize_pem()).unwrap();
}

/// The paths that were requested, one per line.
pub(crate) fn asked(dir: &Path) -> String {
    std::fs::read_to_string(dir.join(ASKED)).unwrap_or_default()
}

/// Serves from now on, under its name.
pub(crate) fn serve(dir: &Path) {
    let chain = vec![CertificateDer::from_pem_file(dir.join(CHAIN)).unwrap()];
    let key = PrivateKeyDer::from_pem_file(dir.join(KEY)).unwrap();
    let config =
        Arc::new(ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap());
    let mut hosts = OpenOptions::new().append(true).open("/etc/hosts").unwrap();
    hosts.write_all(format!("{ADDRESS}\torigin.test\n").as_bytes()).unwrap();
    let listener = TcpListener::bind((ADDRESS, 443)).unwrap();
    let log = Arc::new(OpenOptions::new().create(true).append(true).open(dir.join(ASKED)).unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (config, log) = (Arc::clone(&config), Arc::clone(&log));
            std::thread::spawn(move || stream.and_then(|stream| answer(stream, config, &log)));
        }
    });
}

fn answer(stream: TcpStream, config: Arc<ServerConfig>, log: &File) -> io::Result<()> {
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(connection, stream));
    let (mut path, mut length) = (String::new(), 0);
    let mut head = stream.by_ref().take(MAX_REQUEST);
    loop {
        let mut line = String::new();
        head.read_line(&mut line)?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if path.is_empty() {
            path = line.split(' ').nth(1).unwrap_or("?").to_owned();
        } else if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    if path.is_empty() {
        return Ok(());
    }
    io::copy(&mut stream.by_ref().take(u64::min(length, MAX_REQUEST)), &mut io::sink())?;
    let mut log = log;
    log.write_all(format!("{path}\n").as_bytes())?;
    let stream = stream.get_mut();
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 3\r\nconnection: close\r\n\r\n{}\n")?;
    stream.conn.send_close_notify();
    stream.flush()
}

use proptest::prelude::*;

use super::*;

const ENCODED: &[u8] = b"application/x-www-form-urlencoded; charset=utf-8";
const PARTS: &[u8] = b"multipart/form-data; boundary=x";

fn read(kind: &[u8], body: &[u8]) -> Result<(), FormOverride> {
    FormScan::new("POST", &[kind]).unwrap().read(body)
}

fn in_bytes(kind: &[u8], body: &[u8]) -> Result<(), FormOverride> {
    let mut scan = FormScan::new("POST", &[kind]).unwrap();
    body.iter().try_for_each(|byte| scan.read(&[*byte]))
}

fn part(disposition: &str, value: &str) -> Vec<u8> {
    format!("--x\r\n{disposition}\r\nContent-Type: text/plain\r\n\r\n{value}\r\n--x--\r\n").into_bytes()
}

#[test]
fn a_field_of_a_form_that_names_another_method_is_found() {
    for body in [
        "_method=DELETE",
        "a=1&_method=delete",
        "a=1;_method=PUT&b=2",
        "_METHOD=PUT",
        "_method[]=PUT",
        "_method%5B%5D=PUT",
        "_method%5b0%5d=PUT",
        "%5Fmethod=PUT",
        "%5f%6D%65thod=PUT",
        ".method=PUT",
        "+%20_method=PUT",
        "_method%00x=PUT",
        "_method=POSTS",
        "_method=P%55T",
        "X-HTTP-Method-Override=PUT",
        "x_method_override=PUT",
    ] {
        assert_eq!(read(ENCODED, body.as_bytes()), Err(FormOverride::Method), "{body}");
        assert_eq!(in_bytes(ENCODED, body.as_bytes()), Err(FormOverride::Method), "{body}");
    }
    for body in [
        "",
        "_method=POST",
        "_method=post&a=1",
        "_method=",
        "_method",
        "method=PUT",
        "a_method=PUT",
        "my[_method]=PUT",
        "a=_method%3DPUT",
        "_methods=PUT",
        "%",
        "%4=1",
    ] {
        assert_eq!(in_bytes(ENCODED, body.as_bytes()), Ok(()), "{body}");
    }
}

#[test]
fn a_part_of_a_form_that_names_another_method_is_found() {
    for disposition in [
        "Content-Disposition: form-data; name=\"_method\"",
        "content-disposition:form-data;name=_method",
        "CONTENT-DISPOSITION: form-data; NAME='_METHOD'",
        "Content-Disposition: form-data; filename=\"f\"; name=\"_method\"",
        "Content-Disposition: form-data;\r\n\tname=\"_method\"",
        "Content-Disposition: form-data; name*=utf-8''_method",
        "Content-Disposition: form-data; name*0=\"_met\"; name*1=\"hod\"",
        "Content-Disposition: form-data; name=\"_method[]\"",
        "Content-Disposition: form-data; name=\"%5Fmethod\"",
        "Content-Disposition: form-data; name=\"_me\\thod\"",
        "Content-Disposition : form-data; name = \"_method\"",
        "Content-Disposition: form-data; name=\"x-http-method-override\"",
    ] {
        let body = part(disposition, "DELETE");
        assert_eq!(read(PARTS, &body), Err(FormOverride::Method), "{disposition}");
        assert_eq!(in_bytes(PARTS, &body), Err(FormOverride::Method), "{disposition}");
        assert_eq!(in_bytes(PARTS, &part(disposition, "post")), Ok(()), "{disposition}");
        let lines = String::from_utf8(body).unwrap().replace("\r\n", "\n");
        assert_eq!(in_bytes(PARTS, lines.as_bytes()), Err(FormOverride::Method), "{disposition}");
    }
    for disposition in [
        "Content-Disposition: form-data; name=\"file\"; filename=\"_method\"",
        "Content-Disposition: form-data; name=\"method\"",
        "X-Content-Disposition: form-data; name=\"_method\"",
    ] {
        assert_eq!(in_bytes(PARTS, &part(disposition, "DELETE")), Ok(()), "{disposition}");
    }
    let upload =
        part("Content-Disposition: form-data; name=\"page\"", "<input name=\"_method\" value=\"DELETE\">");
    assert_eq!(in_bytes(PARTS, &upload), Ok(()), "what a file holds is no field");
}

#[test]
fn a_part_whose_header_cannot_be_read_is_refused() {
    let long =
        part(&format!("Content-Disposition: form-data; x=\"{}\"", "y".repeat(MAX_PART_HEADER)), "DELETE");
    assert_eq!(read(PARTS, &long), Err(FormOverride::PartHeader));
}

#[test]
fn only_bodies_that_servers_parse_as_forms_are_scanned() {
    assert!(FormScan::new("POST", &[b"application/json"]).is_none());
    assert!(FormScan::new("POST", &[b"application/octet-stream"]).is_none());
    assert!(FormScan::new("POST", &[]).is_some(), "some servers read a body without a type as a form");
    assert!(FormScan::new("PUT", &[]).is_none());
    assert!(FormScan::new("POST", &[b"text/plain", b"Application/X-WWW-Form-Urlencoded"]).is_some());
}

#[test]
fn overriding_headers_are_recognised_in_any_spelling() {
    for name in
        ["Forwarded", "X-Forwarded-Uri", "x_original_method", "X.Forwarded.Method", "X-HTTP-Host-Override"]
    {
        assert!(is_overriding_header(name), "{name}");
    }
    for name in ["x-forwarded-for", "host", "x-method-name", "content-type"] {
        assert!(!is_overriding_header(name), "{name}");
    }
    assert!(is_describing_header("X-Forwarded-Proto") && !is_describing_header("x-forwarded-for"));
}

proptest! {
    #[test]
    fn the_result_does_not_depend_on_where_a_body_is_divided(body in "[_methodMETHOD%5F=&;\r\n:\\-\"a-zA-Z ]{0,80}", at in 0_usize..80) {
        for kind in [ENCODED, PARTS] {
            let cut = at.min(body.len());
            let mut scan = FormScan::new("POST", &[kind]).unwrap();
            let divided = scan.read(&body.as_bytes()[..cut]).and_then(|()| scan.read(&body.as_bytes()[cut..]));
            prop_assert_eq!(divided, read(kind, body.as_bytes()));
        }
    }

    #[test]
    fn no_encoding_of_a_fields_name_hides_it(encode in proptest::collection::vec(any::<bool>(), 7), upper in any::<bool>(), before in "([a-z]{1,9}=[a-z0-9]{0,9}[&;]){0,3}") {
        let name: String = "_method".bytes().zip(encode).map(|(byte, encode)| match encode {
            true => format!("%{byte:02x}"),
            false if upper => char::from(byte.to_ascii_uppercase()).to_string(),
            false => char::from(byte).to_string(),
        }).collect();
        prop_assert_eq!(in_bytes(ENCODED, format!("{before}{name}=DELETE").as_bytes()), Err(FormOverride::Method));
    }

    #[test]
    fn no_bytes_make_the_form_scan_panic(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = (in_bytes(ENCODED, &body), in_bytes(PARTS, &body));
    }
}

//! Lines and answers of a guest as the daemon and the CLI read them: everything in a bay is hostile to both.
#![no_main]

use bay_text::percent::path_value;
use bay_types::exec::ExecStatus;
use bay_types::guest::{FileStat, GuestEvent, GuestInfo};
use bay_types::inside::{Activity, Port};
use bay_types::service::ServiceView;
use bay_types::watch::WatchLine;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(event) = serde_json::from_slice::<GuestEvent>(line) {
            serde_json::to_vec(&event).expect("what was read can be written");
        }
        let _ = serde_json::from_slice::<GuestInfo>(line);
        let _ = serde_json::from_slice::<FileStat>(line);
        let _ = serde_json::from_slice::<ExecStatus>(line);
        let _ = serde_json::from_slice::<ServiceView>(line);
        let _ = serde_json::from_slice::<WatchLine>(line);
        let _ = serde_json::from_slice::<Vec<Port>>(line);
        let _ = serde_json::from_slice::<Activity>(line);
        assert!(path_value(line).is_ascii());
    }
});

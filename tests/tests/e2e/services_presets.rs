//! Services that come with the product work as the documentation shows them.

use bay_tests::{Daemon, image};

#[test]
fn postgresql_runs_by_its_preset_and_keeps_its_data_over_a_stop() {
    let daemon = Daemon::start();
    let (Some(directory), Some(home)) = (image::postgres(), image::postgres_home()) else { return };
    daemon.import(&directory, image::POSTGRES);
    daemon.bay_from("b", image::POSTGRES);
    let added = daemon.bay(&["services", "add", "b", "--preset", "postgres"]);
    assert_eq!(added.code, 0, "{added}\n{}", daemon.bay(&["services", "logs", "b", "postgres"]));
    assert!(added.text().starts_with("postgres is ready"), "{added}");
    let psql = home.join("bin/psql").display().to_string();
    let query = |how: &str, sql: &str| {
        let line = format!("{psql} {how} -d postgres -v ON_ERROR_STOP=1 -qAtXc \"{sql}\"");
        daemon.sh("b", &line)
    };
    let tcp = query(
        "-h localhost -U postgres",
        "create table t (v text); insert into t values ('kept'); select current_user",
    );
    assert_eq!(tcp.ok().text(), "postgres");
    assert_eq!(query("-h /run/postgresql", "select current_user").ok().text(), "root");
    assert_eq!(
        daemon.sh("b", "ps -o user,args | grep -c '^root .*[p]ostgres -D'").text(),
        "0",
        "it runs as root"
    );

    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let _started = daemon.bay(&["start", "b"]).ok();
    let _ready = daemon.bay(&["services", "start", "b", "postgres"]);
    bay_tests::until("the database to answer again", || {
        let ran = query("-h localhost -U postgres", "select v from t");
        (ran.code == 0).then(|| assert_eq!(ran.text(), "kept"))
    });
}

#[test]
fn a_preset_without_its_server_says_what_to_install_and_the_web_serves_the_workspace() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _added = daemon.bay(&["services", "add", "b", "cache", "--preset", "redis", "--no-wait"]).ok();
    bay_tests::until("the log to say what is missing", || {
        let log = daemon.bay(&["services", "logs", "b", "cache"]);
        log.text().contains("Redis is not installed in this bay").then_some(())
    });
    let _page = daemon.sh("b", "echo hello > /workspace/page.txt").ok();
    let web = daemon.bay(&["services", "add", "b", "--preset", "web"]).ok().text();
    assert!(web.starts_with("web is ready"), "{web}");
    assert_eq!(daemon.sh("b", "wget -qO- http://localhost:8000/page.txt").ok().text(), "hello");
    let both = daemon.bay(&["services", "add", "b", "other", "--preset", "web", "--", "true"]);
    assert_eq!(both.code, 2, "a preset and a command exclude each other: {both}");
}

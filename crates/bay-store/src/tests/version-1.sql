-- A database as the release with schema version 1 left it. Never edited: it stands for the ones people have.
BEGIN TRANSACTION;
CREATE TABLE schema_version (version BIGINT NOT NULL);
INSERT INTO schema_version VALUES(1);
CREATE TABLE meta (
        key TEXT PRIMARY KEY NOT NULL,
        value TEXT NOT NULL
    );
INSERT INTO meta VALUES('daemon_id','0d12c77aa03204c1');
INSERT INTO meta VALUES('event_head','12 cc308128f908c36c144e37f82ae1cbb1afea234a2ba7cc5255adcb5e4e984e31');
INSERT INTO meta VALUES('id_cursor','3262');
CREATE TABLE bays (
        id TEXT PRIMARY KEY NOT NULL,
        name TEXT NOT NULL UNIQUE,
        spec TEXT NOT NULL,
        desired TEXT NOT NULL,
        state TEXT NOT NULL,
        reason TEXT NOT NULL,
        since TEXT NOT NULL,
        created_at TEXT NOT NULL,
        image_id TEXT NOT NULL,
        origin TEXT,
        id_base BIGINT NOT NULL UNIQUE,
        machine_id TEXT NOT NULL,
        runtime TEXT,
        disk_ready BIGINT NOT NULL,
        replace_with TEXT,
        keep_workspace BIGINT NOT NULL
    );
INSERT INTO bays VALUES('bay_01a1e2d1bb2a7275a6835db5d6d92774','one','{"name":"one","source":{"kind":"empty"},"image":"dir:/tmp/small-image","limits":{"pids":8192},"mounts":[]}','stopped','stopped','stopped on request','2026-11-16T05:25:58.272281Z','2026-11-16T05:25:58.186486Z','img_01a1e2d1bb1c7185b9005fad46d84c33',NULL,482148352,'929487c923af283f3329bc86e406bbd3',NULL,1,NULL,0);
CREATE TABLE execs (
        id TEXT PRIMARY KEY NOT NULL,
        bay TEXT NOT NULL REFERENCES bays (id) ON DELETE CASCADE,
        number BIGINT NOT NULL,
        spec TEXT NOT NULL,
        spec_hash TEXT NOT NULL,
        started_at TEXT NOT NULL,
        ended_at TEXT,
        exit TEXT,
        usage TEXT NOT NULL,
        output_bytes BIGINT NOT NULL,
        UNIQUE (bay, number)
    );
INSERT INTO execs VALUES('exec_01a1e2d1bb5f70d6910fb1dde844e8c3','bay_01a1e2d1bb2a7275a6835db5d6d92774',1,'{"id":"exec_01a1e2d1bb5f70d6910fb1dde844e8c3","argv":["sh","-c","echo hi; exit 3"],"env":[],"cwd":null,"user":null,"tty":null,"stdin":false,"timeout_s":null,"tool_call":"call-1"}','5f68009e4fed3baa5ecf8708a93d282058c64b64b0fd9c523b482da5dacd1bbc','2026-11-16T05:25:58.240708Z','2026-11-16T05:25:58.24505966Z','{"reason":"exited","code":3}','{"user_us":1420,"system_us":0,"max_rss_kib":1960}',3);
INSERT INTO execs VALUES('exec_01a1e2d1bb6970269ab39a0118c970c5','bay_01a1e2d1bb2a7275a6835db5d6d92774',2,'{"id":"exec_01a1e2d1bb6970269ab39a0118c970c5","argv":["sleep","1000"],"env":[],"cwd":null,"user":null,"tty":null,"stdin":false,"timeout_s":null,"tool_call":null}','d184a3afb398d14c2afd5958da420a0e33e5ab87f9f559a7668a3e56baae9947','2026-11-16T05:25:58.250612Z','2026-11-16T05:25:58.264549Z','{"reason":"lost","signal":15}','{"user_us":0,"system_us":0,"max_rss_kib":0}',0);
CREATE TABLE events (
        seq BIGINT PRIMARY KEY NOT NULL,
        at TEXT NOT NULL,
        bay TEXT,
        kind TEXT NOT NULL,
        body TEXT NOT NULL,
        hash TEXT NOT NULL
    );
INSERT INTO events VALUES(1,'2026-11-16T05:25:58.170163Z',NULL,'image.import','{"add":[],"by":"uid 0","name":null,"source":"dir:/tmp/small-image"}','17f5609a72d4c21eee918fdd5c01b883e2c11bedd47d5a581664b5c15aeedb7c');
INSERT INTO events VALUES(2,'2026-11-16T05:25:58.186606Z','bay_01a1e2d1bb2a7275a6835db5d6d92774','bay.create','{"by":"uid 0","image":"img_01a1e2d1bb1c7185b9005fad46d84c33","limits":{"pids":8192},"mounts":[],"name":"one","origin":null}','a2c38d33bfa82a5ad2c6ccc1b754ab046ce0f766f88882cc989668ec8809686b');
INSERT INTO events VALUES(3,'2026-11-16T05:25:58.188209Z','bay_01a1e2d1bb2a7275a6835db5d6d92774','bay.start','{}','702fa9cd8eaa8ee9fb16c7720d3287f96034a2ab5e7d9841fbdccce08542508d');
INSERT INTO events VALUES(4,'2026-11-16T05:25:58.233068Z','bay_01a1e2d1bb2a7275a6835db5d6d92774','bay.running','{"guest":"0.1.0","reason":"its guest answers"}','dd3b16e4335357c5f0fd64f675d2f2d40ba5d98082d239e8e34d4b57c973aa2c');
INSERT INTO events VALUES(5,'2026-11-16T05:25:58.234597Z','bay_01a1e2d1bb2a7275a6835db5d6d92774','file.write','{"archive":true,"by":"uid 0","path":"/workspace"}','86519ba6f58fb1e1d1cb29e4d5b2dd636b937930f01c46b0063c4e8f39e9833b');
INSERT INTO events VALUES(6,'2026-11-16T05:25:58.240967Z','bay_01a1e2d1bb2a7275a6835db5d6d92774','exec.start','{"arguments_left_out":0,"argv":["sh","-c","echo hi; exit 3"],"by":"uid 0","exec":"exec_01a1e2d1bb5f70d6910fb1dde844e8c3","tool_call":"call-1","tty":false,"user":null}','14c3f1556f37b468fe419e3561add0b7978b2cb9a535cbd006e4dea447c110e0');
INSERT INTO events VALUES(7,'2026-11-16T05:25:58.246924Z','bay_01a1e2d1bb2a7275a6835db5d6d92774','exec.end','{"exec":"exec_01a1e2d1bb5f70d6910fb1dde844e8c3","exit":{"code":3,"reason":"exited"}}','ba8ff00cf679710fb9f0cce78a7d0ba984a35e3f420ee11f3d697e52a29d3545');
INSERT INTO events VALUES(8,'2026-11-16T05:25:58.25082Z','bay_01a1e2d1bb2a7275a6835db5d6d92774','exec.start','{"arguments_left_out":0,"argv":["sleep","1000"],"by":"uid 0","exec":"exec_01a1e2d1bb6970269ab39a0118c970c5","tool_call":null,"tty":false,"user":null}','f0c30308e28a6d5be640d1cdafd4e3f3885cd8aafba5299028d9044f440437ac');
INSERT INTO events VALUES(9,'2026-11-16T05:25:58.257242Z','bay_01a1e2d1bb2a7275a6835db5d6d92774','bay.stop-asked','{"by":"uid 0"}','3eedf0d8d86080eda8189bd50ddaf288ed25218846d874ca9686d47c8b15eb02');
INSERT INTO events VALUES(10,'2026-11-16T05:25:58.257822Z','bay_01a1e2d1bb2a7275a6835db5d6d92774','bay.stopping','{"reason":"its processes are asked to end"}','22f262bc1227238893aba21cb494e8cabb515fe2833163a0ac47a1b03f5959eb');
INSERT INTO events VALUES(11,'2026-11-16T05:25:58.264716Z','bay_01a1e2d1bb2a7275a6835db5d6d92774','exec.end','{"exec":"exec_01a1e2d1bb6970269ab39a0118c970c5","exit":{"reason":"lost","signal":15}}','9fe26365330d3f5139b82443cffde11a84c6232a5093e220a0921320376123c6');
INSERT INTO events VALUES(12,'2026-11-16T05:25:58.272601Z','bay_01a1e2d1bb2a7275a6835db5d6d92774','bay.stopped','{}','cc308128f908c36c144e37f82ae1cbb1afea234a2ba7cc5255adcb5e4e984e31');
CREATE INDEX execs_open ON execs (bay) WHERE ended_at IS NULL;
CREATE INDEX events_bay ON events (bay, seq);
COMMIT;

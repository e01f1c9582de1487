-- A store as agentrl-core 0.1 wrote it, schema version 1, with one finished call.
CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    created_at REAL NOT NULL,
    status TEXT NOT NULL,
    config TEXT NOT NULL,
    components TEXT NOT NULL,
    error TEXT NOT NULL,
    sampling_closed INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE tasks (
    run_id TEXT NOT NULL REFERENCES runs (id),
    id TEXT NOT NULL,
    data TEXT NOT NULL,
    answer TEXT,
    scorer TEXT,
    answer_schema TEXT NOT NULL,
    PRIMARY KEY (run_id, id)
);
CREATE TABLE groups (
    run_id TEXT NOT NULL REFERENCES runs (id),
    id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    idx INTEGER NOT NULL,
    size INTEGER NOT NULL,
    version INTEGER NOT NULL,
    is_eval INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'ready', 'dropped', 'taken', 'aside')),
    PRIMARY KEY (run_id, id)
);
CREATE INDEX groups_queue ON groups (run_id, idx) WHERE state IN ('open', 'ready') AND is_eval = 0;
CREATE TABLE records (
    id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (id),
    task_id TEXT NOT NULL,
    group_id TEXT NOT NULL,
    sample_index INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    is_eval INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    reward REAL,
    rewards TEXT NOT NULL,
    score REAL,
    score_parts TEXT NOT NULL,
    started_at REAL NOT NULL,
    finished_at REAL NOT NULL,
    FOREIGN KEY (run_id, group_id) REFERENCES groups (run_id, id)
);
CREATE INDEX records_by_group ON records (run_id, group_id, sample_index, attempt);
CREATE INDEX records_by_start ON records (run_id, started_at);
CREATE INDEX records_by_task ON records (run_id, task_id, started_at);
CREATE INDEX records_running ON records (run_id) WHERE outcome = 'running';
CREATE TABLE tools (
    run_id TEXT NOT NULL REFERENCES runs (id),
    hash BLOB NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (run_id, hash)
);
CREATE TABLE interactions (
    run_id TEXT NOT NULL,
    id TEXT NOT NULL,
    record_id TEXT NOT NULL REFERENCES records (id),
    seq INTEGER NOT NULL,
    parent TEXT,
    prompt_ids BLOB NOT NULL,
    output_ids BLOB NOT NULL,
    logprobs BLOB NOT NULL,
    versions TEXT NOT NULL,
    messages TEXT NOT NULL,
    output TEXT NOT NULL,
    tools BLOB,
    sampling TEXT NOT NULL,
    requested TEXT NOT NULL,
    finish_reason TEXT NOT NULL,
    model TEXT NOT NULL,
    trainable INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    tool_errors INTEGER NOT NULL,
    started_at REAL NOT NULL,
    finished_at REAL NOT NULL
);
CREATE UNIQUE INDEX interactions_by_record ON interactions (record_id, seq);
CREATE TABLE steps (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL REFERENCES runs (id),
    step INTEGER NOT NULL,
    version INTEGER NOT NULL,
    groups TEXT NOT NULL,
    records TEXT NOT NULL,
    metrics TEXT NOT NULL,
    voided INTEGER NOT NULL
);
CREATE UNIQUE INDEX steps_live ON steps (run_id, step) WHERE voided = 0;
CREATE INDEX steps_by_run ON steps (run_id, position);
CREATE TABLE versions (
    run_id TEXT NOT NULL REFERENCES runs (id),
    version INTEGER NOT NULL,
    step INTEGER NOT NULL,
    published_at REAL NOT NULL,
    PRIMARY KEY (run_id, version)
);
PRAGMA application_id = 0x41475254;
PRAGMA user_version = 1;
INSERT INTO runs (id, created_at, status, config, components, error) VALUES ('run', 0.0, 'running', '{}', '{}', '');
INSERT INTO groups VALUES ('run', 'group', 'task', 0, 1, 0, 0, 'open');
INSERT INTO records VALUES (
    'record', 'run', 'task', 'group', 0, 0, 0, 'running', '', '', NULL, '{}', NULL, '{}', 1.0, 0.0
);
INSERT INTO interactions VALUES (
    'run', 'call-0', 'record', 0, NULL, X'0100000002000000', X'03000000', X'000000BF', '[[0,1]]',
    '[{"role":"user","content":"hi"}]', '{"role":"assistant","content":"ho"}', NULL, '{}', '{}', 'stop',
    'default', 1, 0, 0, 1.0, 2.0
);

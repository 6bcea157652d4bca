"""Which oracle sees it when a rule of PROTOCOL is broken.

Rules whose names are not here (A4's sources, F) have none of their own: a file that breaks them
shows it by another rule. Four kinds of oracles: checks of histories and files (`checker`,
`region_checks`), complaints of who watches nodes from inside (`watch`), of the model of the tables
(`model`), and directed scenarios that assert something themselves. `tests/test_rules` holds this
table against what there is.
"""

from __future__ import annotations

from typing import Final

ORACLES: Final[dict[str, tuple[str, ...]]] = {
    "A1 the leader applies at append, replicas at commit": (
        "A1 replicas apply what is committed", "tables_agree", "replicas_never_diverge",
    ),
    "A2 nothing leaves before it is committed": (
        "A2 told once it is committed", "A2 answers wait for what they were read from",
        "A2 pushes wait for what they were read from", "A2 what is shown is committed",
        "A2 what is committed is shown",
        "A2 what is delivered is committed", "A2 the schema is read at the watermark",
        "A2 an acknowledgement counts once it is committed",
        "A2 a deposed leader does not answer", "shown_is_committed", "watermark_never_falls",
    ),
    "A3 the watermark is what leader and majority have on disk": (
        "A3 committed is on a majority", "A3 counted once it is on the disk",
        "A3 acknowledged once it is on the disk", "A3 what is acknowledged has no holes",
        "A3 an lsn is used once in a ballot",
        "committed_is_on_a_majority", "acknowledged_is_durable",
    ),
    "A4 apply reads its own tables": (
        "tables_agree", "schema_is_the_metadata_sets", "pushes_follow_each_other", "M schema",
    ),
    "A5 versions and digests": ("tables_agree", "row-changed-by-somebody"),
    "A6 the chain": (
        "files_agree", "files_are_whole", "A6 the chain is whole after a repair",
        "A6 what is put back was committed",
    ),
    "A7 trimming": (
        "A7 only what is committed is trimmed", "A7 only what is applied is trimmed",
        "A7 what a member lacks is kept", "nothing_is_owed",
    ),
    "B1 ballots": (
        "B1 a promise survives", "B1 a promise is on the disk", "B1 lower ballots are refused",
        "B1 a ballot is used once", "B1 a majority has promised",
    ),
    "B2 the most advanced log, verified": (
        "B2 an acknowledgement names what was verified", "A3 committed is on a majority",
        "acknowledged_is_durable",
    ),
    "B3 no memory, no vote": (
        "B3 enough remember", "B3 who counts remembers", "B3 a power loss is noticed",
        "B3 who counts has what it acknowledged",
        "B3 who was restored has no memory", "B3 a mark is of a committed entry",
        "A3 committed is on a majority", "acknowledged_is_durable",
    ),
    "B4 a damaged log is not a torn one": (
        "B4 a power loss is not taken for damage", "acknowledged_is_durable", "files_are_whole",
    ),
    "B5 membership": ("B1 a majority has promised", "A3 committed is on a majority"),
    "B6 copies": (
        "B6 a copy says what it is", "B6 a copy is committed", "B6 a backup is as of now",
        "B6 a backup has what was there when it began",
        "B6 a copy ends at its position", "B6 what is installed has bodies of its own entries",
        "B6 a copy has the bodies that were committed",
        "B6 what is installed has all that the disk had", "B6 a cluster's copies fit each other",
    ),
    "B7 a full disk loses nothing": ("disk-without-room", "progress"),
    "B8 clocks": (
        "B8 stamps are the time", "stamps_are_the_time", "clock-far-off",
        "clock-that-jumps-while-peers-answer",
    ),
    "C what each setting survives": ("acknowledged_is_durable", "A2 told once it is committed"),
    "D1 producers": (
        "D1 sequences follow each other", "D1 what follows has the number behind",
        "D1 what may be logged is sent as it was", "D1 what may be logged is not called lost",
        "D1 a share counts what has no outcome", "no_duplicates", "producer_order",
        "refused_is_absent", "published_once", "producers-idle-for-a-day", "M streams",
    ),
    "D2 deliveries and retention": (
        "deliveries_keep_the_rules", "confirmed_acks_stay", "nothing_acknowledged_by_nobody",
        "everything_is_delivered", "everything_is_settled", "groups_stay", "letters_are_whole",
        "D2 a group is served as the tables have it", "D2 a deadline ends a delivery",
        "D2 who is silent is gone", "D2 what follows waits for the commit",
        "D2 what others may have is not handed out", "D2 what is acknowledged was handed out",
        "D2 what was dealt with is delivered no more", "D2 each record is in one place",
        "D2 attempts are counted", "D2 retention drops what is due",
        "D2 retention drops the oldest batches", "retention_keeps_its_bounds", "nothing_is_owed",
        "M streams",
        "M groups",
    ),
    "D3 ids, not names": (
        "schema_is_durable", "schema_changes_stay", "D3 an id means one thing",
        "D3 an index means one thing", "D3 who is behind says so", "nothing_is_owed",
        "D3 the schema is shown as of its index", "M schema",
    ),
    "D4 cursors outside": (
        "D4 a cursor of another history is refused", "D4 a reader names what it has read",
        "follower-of-a-log-that-lost-its-end",
    ),
    "E3 pipelines: once per trigger and stage": (
        "one_instance_per_trigger", "one_output_per_stage", "completions_stay",
        "every_instance_ends", "stages_fail_after_all_attempts",
        "E3 a stage has all its attempts", "E3 the latest attempt counts", "M pipelines",
    ),
}
"""By rule: the names of what sees it."""

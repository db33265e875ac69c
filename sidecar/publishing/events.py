"""Explain each log event: the source of docs/reference/log-events.md. Data only; it must not import the daemon.

The text that people see on a terminal is in `sentences`.
"""

from collections.abc import Mapping
from typing import Final

EVENTS: Final[Mapping[str, str]] = {
    # Start
    "settings_read": "The settings were read from a file in the current directory; no option named the file.",
    "daemon_started": "The daemon serves HTTP and knows its role.",
    "setting_ineffective": "A setting has no effect, because another one contradicts it.",
    "role_uncertain": "The role of this node was derived from a hint that may be misleading.",
    "chief_idles": "This node is the training job's chief, so its daemon evaluates nothing.",
    "eval_ports_public": "The ports of the worker processes are open on an address of the internet.",
    "journal_read": "The daemon has read the run's journal for the first time; the totals are exported from now on.",
    "run_begun_anew": "The run's state or the checkpoint directory was replaced; the daemon begins a new run.",
    # Several runs in one daemon
    "no_runs_found": "No directory matches `runs` yet; those that come later begin by themselves.",
    "runs_not_listed": "The directories of `runs` cannot be listed now; the runs that are known go on.",
    "runs_left_out": "There are more directories of runs than a daemon serves; some begin when others have ended.",
    "run_begun": "A run among several is served from now on.",
    "run_settings_ignored": "The `sidecar.toml` of a run is not read, since another user may have written it.",
    "run_delayed": "A run among several cannot begin yet, because its storage does not answer; the others go on.",
    "run_failed": "A run among several cannot be served; it begins again after a pause, and the others go on.",
    "run_gone": "The directory of a run is gone for `vanished_after_seconds`, so the run ends.",
    "run_broke": "A run among several met a bug of this program; the others go on.",
    # The task and the worker processes
    "task_check_begun": "A separate process imports the task, to find mistakes before the first checkpoint.",
    "task_checked": "The task can be used.",
    "task_check_interrupted": "The process that checked the task was killed from outside; another one is started.",
    "task_changed": "The code of the task differs from the code that was checked before.",
    "worker_logs_moved": "The folder in `worker_logs` cannot be used, so the logs are written to another one.",
    "worker_not_started": "A worker process could not be started; the daemon tries again after a pause.",
    "worker_started": "A worker process was started and imports the framework.",
    "workers_taken_over": "A run among several got the worker processes of another one, which has the same task.",
    "worker_placed": "A Ray cluster granted a machine, and the worker process was started there.",
    "cluster_released": "No checkpoint waited for `ray_idle_seconds`, so the cluster got its machines back.",
    "worker_ready": "A worker process has imported the framework and can join a group.",
    "worker_exited": "A worker process ended, and the daemon did not kill it.",
    "worker_failed": "A worker process reported a failure outside of an evaluation.",
    "worker_starved": "A worker process waited for processors for `yield_seconds`: its priority was raised, or it is "
    "replaced.",
    "worker_overran": "A worker process passed a time limit and was killed.",
    # The checkpoint directory
    "checkpoint_dir_missing": "The checkpoint directory does not exist, or does not exist any more.",
    "many_checkpoints": "The directory holds more checkpoints than are supported: scans take longer.",
    "checkpoints_in_subfolders": "Sub-folders hold checkpoints that `checkpoint_glob` does not name.",
    "nothing_seen": "No checkpoint was seen for `nothing_seen_seconds`.",
    "file_events_unavailable": "The kernel reports no file events of the checkpoint directory; scans find checkpoints.",
    "checkpoint_found": "A complete checkpoint was found.",
    "steps_found": "The source of the training steps, logged once, and again when it changes.",
    "step_unknown": "`every_steps` is set, and the training step of a checkpoint is unknown.",
    "checkpoints_deleted_unseen": "Training deleted checkpoints before any node saw them.",
    "checkpoint_not_held": "A waiting checkpoint cannot be pinned, because the bounds of pins leave no space.",
    "checkpoint_entry_failed": "A checkpoint or a pin cannot be read, pinned or removed; the others are not affected.",
    # Evaluations
    "plan_opened": "An evaluation begins.",
    "evaluation_succeeded": "An evaluation succeeded; its numbers are exported.",
    "eval_set_changed": "The data of an eval set differs from that of its last evaluation.",
    "nonfinite_examples": "Examples of an evaluation hold NaN or infinite numbers.",
    "plan_failed": "An attempt at an evaluation failed.",
    "record_set_aside": "Records of the journal break a limit or an invariant and were set aside; all others count.",
    "checkpoint_settled": "A checkpoint was skipped, given up or requeued; no evaluation of it is running.",
    "best_metric_unknown": "`best_metric` names a metric that the task does not measure.",
    "checkpoint_exported": "The pin of one of the best checkpoints became an export (`export_best`).",
    "best_changed": "The link `exports/best` leads to another checkpoint.",
    "export_removed": "An export was removed, because it is not among the best ones any more.",
    "export_returned": "An export became a pin again, because its checkpoint is evaluated again.",
    "export_failed": "An export could not be made, removed or linked, or a foreign entry lies among the exports.",
    "export_settings_differ": "Nodes have different settings for exports; what any of them wants is retained.",
    "saves_left": "Saved weights or predictions could not be removed after several attempts.",
    "old_evaluations_removed": "Folders of evaluations beyond `keep_states` were removed; the journal has the numbers.",
    "entry_failed": "A file that nothing depends on, such as a view of a result, cannot be read, written or removed.",
    # Sinks
    "sink_failed": "A sink, such as `remote_write`, does not take results; they are delivered later.",
    "sink_recovered": "A sink takes results again.",
    "sink_progress_damaged": "The record of what a sink has is damaged; `follows` says what is done.",
    "sink_refused": "A sink refused a result for good, or a hook gave an event up; the next ones are delivered.",
    "early_stop_signalled": "A metric did not improve for `early_stop_patience` evaluations, and levelled off: "
    "training is told to stop.",
    "best_uploaded": "The best export was uploaded to MLflow.",
    "best_upload_failed": "The best export could not be uploaded to MLflow; that is tried again.",
    # Shared storage and time
    "storage_failed": "Shared storage gave an error; the daemon tries again after a beat.",
    "storage_recovered": "Shared storage works again after an error.",
    "loop_was_stopped": "The daemon's process did not run for longer than a lease, as when a machine is suspended.",
    # HTTP
    "http_request_failed": "A view raised an exception, and its request was answered with 500: a bug.",
    "http_access_failed": "The changed file of `http_access`, or a new certificate, cannot be used; the old one stays.",
    "http_access_read": "The file of `http_access`, or a certificate, was changed, and new connections obey it.",
    "http_connection_failed": "A connection raised an exception and was closed: a bug.",
    "http_stopped": "The HTTP server ended because of an exception: a bug.",
    # End
    "draining": "The daemon got a signal and ends after the running evaluation, or when `drain_seconds` are over.",
    "stopped_at_once": "The daemon got a second signal and ends at once.",
    "left_unheard": "The daemon ended before its last heartbeat was written, so the other nodes wait for a lease.",
    "run_ended": "The run is over by the definition in the settings; all worker nodes end.",
}

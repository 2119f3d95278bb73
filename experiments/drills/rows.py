"""What rl4p promises, each with the tests or the drill that shows it, and a mutant of its guard.

A drill is a module of this folder. `parity` names tests that need torch and transformers. The
mutants, which tests must notice, are in tests/mutants.
"""

ROWS: dict[str, list[dict[str, str]]] = {
    "numbers": [
        {
            "what": (
                "a resumed run equals an uninterrupted one in parameters, optimizer, keys, "
                "prompts, metrics"
            ),
            "tests": "tests/runs/test_resume.py",
            "mutant": "a resumed run drops everything that was restored except the step",
        },
        {
            "what": "the same run twice agrees in every digit",
            "tests": "tests/runs/test_train.py -k twice",
            "mutant": "the seed of a run is the time",
        },
        {
            "what": "logits and gradients are those of transformers, for each family",
            "parity": "tests/parity/test_transformers.py",
            "mutant": "kernels are not transposed",
        },
        {
            "what": (
                "log-probabilities of the samplers are those of the trainer, with each "
                "temperature and cut"
            ),
            "tests": "tests/rollout/test_naive_sampler.py tests/rollout/test_continuous.py",
            "mutant": "the continuous sampler ignores temperature and support",
        },
        {
            "what": (
                "padding, packing, microbatches and the order of rows change no loss and no"
                " gradient"
            ),
            "tests": "tests/update/test_invariances.py tests/learner/test_packing.py",
            "mutant": "packed sequences see one another",
        },
        {
            "what": "one device and eight sample and train alike, on each mesh",
            "tests": "tests/distributed/test_mesh.py",
            "mutant": "rows are not split along fsdp",
        },
        {
            "what": (
                "advantages move with their samples, and are finite for equal rewards and "
                "single samples"
            ),
            "tests": "tests/advantage/test_invariances.py",
            "mutant": "a group of equal rewards gets the global part of dapo_mix",
        },
        {
            "what": (
                "losses, divergences and gradients are those of NumPy and of finite "
                "differences in float64"
            ),
            "tests": "tests/update/test_losses.py tests/learner/test_kl.py",
            "mutant": "k3 has the opposite log-ratio",
        },
        {
            "what": "the trained tokens of each chat template are exactly those of the answers",
            "tests": "tests/model/test_trained_tokens.py",
            "mutant": "the end token of an answer is not trained",
        },
        {
            "what": "the trained tokens of episodes are those drawn, after those that were read",
            "drill": "exact_turns",
            "mutant": "a history that the template rewrites goes on in the same segment",
        },
        {
            "what": "new weights are used from the next completion on, in process and by servers",
            "tests": "tests/engine/test_in_process.py tests/engine/remote/test_weights.py",
            "mutant": "a stale server that claims to be new gets requests",
        },
    ],
    "faults": [
        {
            "what": "a run killed with SIGKILL at random moments goes on exactly",
            "drill": "kills",
            "mutant": "metrics of later steps are not dropped",
        },
        {
            "what": (
                "a run killed at random moments, whose folder is lost, goes on exactly from its "
                "mirror in S3"
            ),
            "drill": "killed_mirrors",
            "mutant": "the digests of a checkpoint are sent before its files",
        },
        {
            "what": "a run that keeps one checkpoint and is killed while it saves the next has one",
            "drill": "killed_saves",
            "mutant": "a killed save is in the way of the next",
        },
        {
            "what": "a run killed at random moments has its best checkpoint, and never a worse one",
            "tests": "tests/runs/test_best.py",
            "mutant": "the best checkpoint is deleted with the older ones",
        },
        {
            "what": "with `stop.before` a run ends and saves before the time limit of a queue",
            "drill": "time_limits",
            "mutant": "no time is reserved for the last save",
        },
        {
            "what": (
                "a run stopped with SIGTERM at random moments, compilation and evaluation "
                "included, ends within 30 s and goes on exactly"
            ),
            "drill": "stops",
            "mutant": "a run has no deadline after SIGTERM",
        },
        {
            "what": (
                "a run that compiles and grades for minutes prints a line each minute, and on a "
                "terminal what it does"
            ),
            "drill": "silence",
            "mutant": "a compilation is silent in plain output",
        },
        {
            "what": "SIGTERM and Ctrl-C save, and say how to resume",
            "tests": 'tests/runs/test_signals.py tests/runs/test_resume.py -k "signal or stopped"',
            "mutant": "a stopped run is not saved",
        },
        {
            "what": (
                "on a full or read-only disk a run fails in sentences, and goes on exactly "
                "with room"
            ),
            "drill": "full_disk",
            "mutant": "a log that cannot be written prints a traceback for each line",
        },
        {
            "what": (
                "every flipped bit of a checkpoint is found, its file named, and the step "
                "before used"
            ),
            "drill": "bit_flips",
            "mutant": "damaged steps are restored",
        },
        {
            "what": "broken metadata of checkpoints gives no traceback",
            "drill": "fuzzed_checkpoints",
            "mutant": "a step without digests is restored",
        },
        {
            "what": "broken files of questions, run folders and tokenizers give no traceback",
            "drill": "fuzzed_files",
            "mutant": "a broken interpolation in a run folder is a traceback",
        },
        {
            "what": "a resumed run refuses a record, questions or a configuration that were edited",
            "drill": "edits",
            "mutant": "gaps in the record are accepted",
        },
        {
            "what": (
                "a checkpoint that is cut, empty or of another model is refused by name; no"
                " silent cast"
            ),
            "tests": "tests/runs/test_saved_steps.py tests/runs/test_checkpoint.py",
            "mutant": "dtypes are not compared",
        },
        {
            "what": (
                "a gradient that is not finite changes nothing, is counted, and stops the "
                "run if it repeats"
            ),
            "tests": "tests/learner/test_gradient_step.py tests/loop/test_loop.py -k finite",
            "mutant": "a skipped update moves the optimizer",
        },
        {
            "what": (
                "a term that raises, exits, hangs or returns nonsense is invalid, and never"
                " a grade of zero"
            ),
            "tests": (
                "tests/loop/test_grading.py tests/reward/test_live_terms.py "
                "tests/command/test_launcher.py"
            ),
            "mutant": "a term that exits ends the run",
        },
        {
            "what": "faults of servers lose no completion and train no wrong token",
            "tests": "tests/engine/remote",
            "mutant": "the requests of a server that is taken out are not given to others",
        },
        {
            "what": (
                "a store of MLflow that refuses, fails or never answers costs under 1 % of a "
                "step, and all is sent later"
            ),
            "drill": "trackers",
            "mutant": "a store that was silent is waited for again",
        },
        {
            "what": "a run killed while it creates a store of MLflow leaves none that is broken",
            "drill": "killed_stores",
            "mutant": "a database is created in its place",
        },
        {
            "what": "every tracker gets each step once, whatever fails",
            "tests": "tests/runs/tracker tests/test_send.py",
            "mutant": "metrics that the store has are sent again",
        },
        {
            "what": "unreadable data is named by file and line before anything compiles",
            "tests": "tests/data",
            "mutant": "the line of a CSV row is the number of the row",
        },
        {
            "what": "memory stays the same over thousands of steps",
            "drill": "memory",
            "mutant": "a run keeps the states of all steps",
        },
        {
            "what": "no HOME, a C locale, a closed output, spaces, a wheel, two runs at once",
            "drill": "surroundings",
            "mutant": "no lock is taken in a run's folder",
        },
    ],
    "attacks": [
        {
            "what": (
                "a configuration, a run folder or a checkout of somebody else runs no code, and is "
                "refused in a sentence; a module beside it would leave a mark"
            ),
            "tests": "tests/configuration tests/runs/test_environment.py -m hostile",
            "mutant": "a YAML file may trust packages",
        },
        {
            "what": (
                "recipes and run folders of others reach no address, variable or file: nothing "
                "leaves, and no file is read or changed"
            ),
            "drill": "canaries",
            "mutant": "a capability of a file needs no word",
        },
        {
            "what": (
                "chat templates, patterns and normalizers of a model that hang or fill the memory "
                "are refused"
            ),
            "tests": "tests/model/test_trial.py",
            "mutant": "a tokenizer is loaded without a trial",
        },
        {
            "what": "text of others never acts on the terminal",
            "tests": "tests/base/test_terminal.py tests/base/test_console.py",
            "mutant": "escape sequences reach the terminal",
        },
        {
            "what": "only parts of rl4p and what the command line trusts are targets",
            "tests": "tests/configuration/test_trust.py tests/configuration/test_targets.py",
            "mutant": "functions of rl4p are targets",
        },
        {
            "what": "folders of models that are broken or hostile are refused by file and key",
            "tests": "tests/model/test_tokenizer.py tests/model/test_trained_tokens.py",
            "mutant": "a template that calls itself is a traceback",
        },
        {
            "what": "answers that are bombs for a grader cost their deadline and no more",
            "drill": "bombs",
            "mutant": "a late item is waited for",
        },
        {
            "what": "a worker that hangs, dies or grows costs one grade, and is replaced",
            "tests": "tests/reward/test_answers.py tests/reward/test_workers.py",
            "mutant": "a worker process that was killed is not replaced",
        },
        {
            "what": "code of a model reaches no network, file, process, or grade of its own",
            "tests": ("tests/reward/test_sandbox.py tests/reward/test_code.py"),
            "mutant": "the filter of system calls is left out",
        },
        {
            "what": "programs that fill the memory of their sandboxes at once stay in its limits",
            "drill": "memory_attacks",
            "mutant": "the group of a sandbox has no limit",
        },
        {
            "what": "weights are never unpickled, and a wrong header is refused",
            "tests": "tests/model/test_tensor_files.py tests/model/test_folder.py",
            "mutant": "a device without an end is read",
        },
        {
            "what": (
                "servers answer their hosts only, with a token; secrets stay out of what is written"
            ),
            "tests": "tests/engine/serving/test_app.py tests/base/test_http.py",
            "mutant": "a request needs no token",
        },
    ],
}

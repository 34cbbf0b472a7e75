"""Mutations of what keeps a checkpoint's writer from controlling its janitor."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

HANDLES = "tests/engines/test_hostile_handles.py"
PRIVATE = "tests/execution/test_private_files.py"
MASKING = "tests/runtime/test_masking.py"
REGISTRY = "tests/package/test_registry.py"
CHECKPOINT = "tests/execution/test_hostile_checkpoint.py"
LINKS = "tests/execution/test_hostile_links.py"
POSIX = "tests/checkpoint/test_posix.py"
OLD = "tests/execution/test_old_definitions.py"
CLEAN_RUNS = "tests/execution/test_clean_source.py"

MUTATIONS = [
    Mutation(
        name="any text is a tag",
        why="a handle with the tag '/opt/airflow/dags' has that folder removed; an empty one ends every process",
        file="engines/processes.py",
        old='    if found is None or found["engine"]:\n',
        new='    if found is not None and found["engine"]:\n',
        tests=(HANDLES,),
    ),
    Mutation(
        name="a process is known by its start time alone",
        why="a checkpoint names any process of this user, and the janitor kills it",
        file="engines/spark_connect.py",
        old="        if own or processes.carries(process, handle.tag):\n",
        new="        if own or process is not None:\n",
        tests=(HANDLES,),
    ),
    Mutation(
        name="whoever the handle names is spoken to",
        why="a checkpoint's writer is sent what this process has to authenticate itself",
        file="engines/spark_connect.py",
        old="        if server is None or server.public_url != handle.url:\n",
        new="        if server is None:\n",
        tests=(HANDLES,),
    ),
    Mutation(
        name="a refused handle keeps the stage",
        why="one entry written by hand and the janitor stops at that attempt for ever",
        file="execution/janitor.py",
        old='                report.add("refused", what, str(error))\n',
        new="                raise\n",
        tests=(CHECKPOINT,),
    ),
    Mutation(
        name="a class that a checkpoint names is loaded",
        why="who can write a checkpoint runs any module that is installed where the janitor is",
        file="registry.py",
        old="    return load_class(_checked(path))\n",
        new="    return load_class(str(path))\n",
        tests=(REGISTRY,),
    ),
    Mutation(
        name="trust in a module goes to names that begin like it",
        why="a package 'acme_evil' is trusted with 'acme'",
        file="registry.py",
        old='module.startswith(f"{trusted}.")',
        new="module.startswith(trusted)",
        tests=(REGISTRY,),
    ),
    Mutation(
        name="an entry point takes a name of this package",
        why="any installed distribution replaces the file source",
        file="registry.py",
        old="        return {**{name: Entry(path) for name, path in _installed(self.group)}, **self._own}\n",
        new="        return {**self._own, **{name: Entry(path) for name, path in _installed(self.group)}}\n",
        tests=(REGISTRY,),
    ),
    Mutation(
        name="a hook that may not be loaded keeps the stage",
        why="one name written by hand and the stage of that attempt stays for ever",
        file="execution/janitor.py",
        old='            report.add("refused", f"a hook of {what}", str(error))\n',
        new="            raise\n",
        tests=(CHECKPOINT,),
    ),
    Mutation(
        name="an error is stored as it came",
        why="the password in a driver's message lies in the checkpoint for as long as the log keeps",
        file="checkpoint/records.py",
        old="{name: mask(value) if name in _TOLD and isinstance(value, str) else value for ",
        new="{name: value for ",
        tests=(MASKING,),
    ),
    Mutation(
        name="an entry of the log sets whatever it names",
        why="who can write a checkpoint chooses what Spark loads",
        file="execution/pipeline.py",
        old="    return {key: value for key, value in conf.items() if key.startswith(SQL)}\n",
        new="    return dict(conf)\n",
        tests=(MASKING,),
    ),
    Mutation(
        name="the door to the stages stays open",
        why="whoever has a login reads rows that no audit has passed",
        file="sinks/file.py",
        old='            make_private_folder(self.root / "_staging")\n',
        new='            make_folders(self.root / "_staging")\n',
        tests=(PRIVATE,),
    ),
    Mutation(
        name="a checkpoint's folder is made as the umask says",
        why="whoever has a login reads the logs, and where the umask is wide writes them",
        file="checkpoint/posix.py",
        old="        if folder == self._top or self._top in folder.parents:\n",
        new="        if not folder:\n",
        tests=(PRIVATE,),
    ),
    Mutation(
        name="what was written before is checked as if a user wrote it",
        why="one definition of an older version and no command can tell any more what is in the table",
        file="definition.py",
        old="    return _read_back.get()\n",
        new="    return False\n",
        tests=(OLD,),
    ),
    Mutation(
        name="a sink that cannot be used stops every command",
        why="a package that is gone for long keeps a broken checkpoint from being repaired",
        file="execution/maintenance/site.py",
        old="        self._check_usable(self._unusable if may_be_in is None else self._unusable.keys() & may_be_in)\n",
        new="        self._check_usable(self._unusable)\n",
        tests=(OLD,),
    ),
    Mutation(
        name="a sink that cannot be asked has nothing",
        why="a batch that is in it is planned again, and its rows are there twice",
        file="execution/maintenance/site.py",
        old="        self._check_usable(self._unusable if may_be_in is None else self._unusable.keys() & may_be_in)\n",
        new="        _ = may_be_in\n",
        tests=(OLD,),
    ),
    Mutation(
        name="a server that a checkpoint names is spoken to",
        why="who can write a checkpoint is sent the token of the janitor, and what it says is believed",
        file="definition.py",
        old="        if not any_server:\n",
        new="        if not data:\n",
        tests=(REGISTRY, CHECKPOINT),
    ),
    Mutation(
        name="a pipeline's own servers have to be trusted",
        why="a janitor that has the pipeline refuses its tables as soon as a column was added",
        file="definition.py",
        old="    trusted = set(settings().trusted_servers).union(*(one.servers() for one in live))\n",
        new="    trusted = set(settings().trusted_servers)\n",
        tests=(REGISTRY,),
    ),
    Mutation(
        name="an entry that is a link is read",
        why="who can write a checkpoint has any file of this user shown in a message, or taken for a log entry",
        file="checkpoint/posix.py",
        old="""        self._check_no_link(target)
        # Nor""",
        new="        # Nor",
        tests=(POSIX,),
    ),
    Mutation(
        name="a lock is made behind a link",
        why="who can write in a table's folder has files and folders made wherever its writer may",
        file="sinks/file.py",
        old="        check_no_link(self.root, path)\n        with locked",
        new="        with locked",
        tests=(LINKS,),
    ),
    Mutation(
        name="the door to the stages is a link",
        why="stages lie where somebody else wants them",
        file="sinks/file.py",
        old='            check_no_link(self.root, self.root / "_staging")\n',
        new="",
        tests=(LINKS,),
    ),
    Mutation(
        name="clean_source deletes by a path that it has looked at",
        why="who can write the landing folder has any file deleted, by a link that they put there meanwhile",
        file="sources/file_clean.py",
        old="os.unlink(name, dir_fd=folder)",
        new="os.unlink(file.path)",
        tests=(CLEAN_RUNS,),
    ),
    Mutation(
        name="clean_source archives by a path that it has looked at",
        why="who can write the landing folder has any file moved away, by a link that they put there meanwhile",
        file="sources/file_clean.py",
        old="os.rename(name, new, src_dir_fd=folder, dst_dir_fd=into)",
        new="os.rename(path, new, dst_dir_fd=into)",
        tests=(CLEAN_RUNS,),
    ),
    Mutation(
        name="a folder has its name before it has its mode",
        why="its maker is killed, and the group that is to read it never can",
        file="settings.py",
        old='    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")\n',
        new="    hidden = path\n",
        tests=(PRIVATE,),
    ),
]

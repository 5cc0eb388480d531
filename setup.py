"""The wheel also holds what a new project starts with (sdgbias/project): the rules of
expectations/, the registry without its models, dvc.yaml, params.yaml and the settings of DVC. All
else is in pyproject.toml."""

from pathlib import Path
from shutil import copyfile

from setuptools import setup
from setuptools.command.build_py import build_py

DVC = (".dvc/config", ".dvc/.gitignore", ".dvcignore", "dvc.yaml", "params.yaml")
PROJECT = ("expectations/*", "registry/*.*", *DVC)


class BuildWithProject(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:  # a checkout's own files are at its top
            return
        for source in (path for pattern in PROJECT for path in Path().glob(pattern)):
            target = Path(self.build_lib, "sdgbias", "project", source)
            target.parent.mkdir(parents=True, exist_ok=True)
            copyfile(source, target)
        models = Path(self.build_lib, "sdgbias", "project", "registry", "models")
        models.mkdir(parents=True, exist_ok=True)
        (models / "README.md").write_text("One file per model: sdgbias register-model REPO\n")


setup(cmdclass={"build_py": BuildWithProject})

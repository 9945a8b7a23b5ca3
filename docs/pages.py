"""What `mkdocs build` makes the site of: pages at their places in the repository, and all flags."""

from __future__ import annotations

from pathlib import Path

from cyclopts.docs.markdown import generate_markdown_docs
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from specdec_plugins.cli import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("*.md", "docs/*", "benchmarks/results/*", "benchmarks/models/*/*.md", "data/**/*.md")
FLAGS = "docs/flags.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Each file under its path in the repository, so that one link serves both."""
    for file in [one for one in files if one.src_dir == config.docs_dir]:  # not the theme's
        files.remove(file)
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file():
                place = str(path.relative_to(ROOT))
                files.append(File(place, str(ROOT), config.site_dir, config.use_directory_urls))
    files.append(File.generated(config, FLAGS, content=flags()))
    return files


def flags() -> str:
    """Markdown with every command and flag, from their declarations."""
    told = generate_markdown_docs(app(has_flags=True), generate_toc=False, no_root_title=True)
    return "# All commands and flags\n\n" + told.replace("<", "&lt;")

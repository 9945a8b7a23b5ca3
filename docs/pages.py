"""What `mkdocs build` makes the site of: the repository's pages, and references of declarations."""

from __future__ import annotations

from pathlib import Path

from cyclopts.docs.markdown import generate_markdown_docs
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from specdec_plugins.cli import app
from specdec_plugins.serving.metrics import Metrics
from specdec_plugins.serving.schemas import Parameters, TranslateRequest

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "*.md",
    "docs/*",
    "benchmarks/results/*",
    "benchmarks/models/*/*.md",
    "data/**/*.md",
    "tests/gpu/*.md",
    "deploy/*.md",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Each file under its path in the repository, so that one link serves both."""
    for file in [one for one in files if one.src_dir == config.docs_dir]:  # not the theme's
        files.remove(file)
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file():
                place = str(path.relative_to(ROOT))
                files.append(File(place, str(ROOT), config.site_dir, config.use_directory_urls))
    for name, told in (("flags", flags()), ("requests", requests()), ("metrics", metrics())):
        files.append(File.generated(config, f"docs/{name}.md", content=told.replace("<", "&lt;")))
    return files


def flags() -> str:
    told = generate_markdown_docs(
        app(has_flags=True), heading_level=2, generate_toc=False, no_root_title=True
    )
    return "# All commands and flags\n\n" + told


def requests() -> str:
    told = "# Fields of requests\n\nAnswers and their types: `/docs` on a server.\n"
    for title, model in (("generate", Parameters), ("translate", TranslateRequest)):
        told += f"\n## /{title}\n\n| field | meaning |\n|---|---|\n"
        for name, field in model.model_fields.items():
            told += f"| `{name}` | {field.description or ''} |\n"
    return told


def metrics() -> str:
    told = "# Metrics of the server\n\nIn Prometheus, the names of counters end in `_total`.\n"
    told += "\n| name | kind | meaning |\n|---|---|---|\n"
    for one in Metrics().registry.collect():
        told += f"| `{one.name}` | {one.type} | {one.documentation} |\n"
    return told

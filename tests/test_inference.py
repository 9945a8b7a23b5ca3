"""inference.py from its flags to its files, on small random checkpoints of fairseq's making."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from benchmarks.engines.fairseq import FairseqSearch
from specdec_plugins.app.main import inference as main
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.decoding.contract import Draft, Prefix, Scores
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.errors import BROKEN_PIPE, INTERRUPTED
from specdec_plugins.formats.dictionaries import Dictionary
from tests import fairseq_checkpoints
from tests.bundles import BUNDLED, ROOT
from tests.programs import talking_to
from tests.refusals import refused

pytestmark = pytest.mark.fairseq

DONE = (0, 1)  # 1: some line is cut
STRATEGIES = ["AR", "specdec", "drafter"]
LINES = [" ".join(f"s{(i * 7 + j * 3) % 30}" for j in range(i % 6 + 1)) for i in range(20)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dictionaries, a verifier, a drafter for blocks of 6, and 20 lines."""
    data = fairseq_checkpoints.translating_pair(tmp_path_factory.mktemp("data"))
    (data / "in").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return data


class Cli:
    """The command line with that folder's models, from one file to another."""

    def __init__(self, folder: Path, tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.tmp, self.capsys = folder, tmp, capsys
        self.source, self.out, self.json = folder / "in", tmp / "out", tmp / "json"

    def arguments(self, *more: str) -> list[str]:
        models = {"--path": self.folder / "drafter.pt", "--AR-path": self.folder / "verifier.pt"}
        files = {"--input-path": self.source, "--output-path": self.out}
        paths = [str(part) for pair in (models | files).items() for part in pair]
        common = ["-s", "en", "-t", "de", "--cpu", "--dtype", "float64", "--max-len-b", "12"]
        return [str(self.folder), *paths, *common, *more]

    def infer(self, *more: str, lines: Sequence[str] | None = None) -> list[str]:
        """Lines of the output of a run that must succeed, whatever it cuts."""
        if lines is not None:
            self.source = self.tmp / "in"
            self.source.write_text("\n".join(lines), encoding="utf-8")
        assert main(self.arguments(*more)) in DONE
        text = self.out.read_text(encoding="utf-8")
        assert text.endswith("\n")
        return text.split("\n")[:-1]

    def records(self, *more: str) -> list[dict[str, Any]]:
        """What such a run writes about each line."""
        self.infer("--json-path", str(self.json), *more)
        return [json.loads(line) for line in self.json.read_text(encoding="utf-8").splitlines()]

    def translator(self, **settings: Any) -> SpeculativeTranslator:
        """The same in Python."""
        models = {"verifier": str(self.folder / "verifier.pt"), "source_lang": "en"}
        models |= {"drafter_checkpoint": str(self.folder / "drafter.pt"), "target_lang": "de"}
        how = {"dtype": "float64", "device": "cpu", "max_len_b": 12, **models, **settings}
        return SpeculativeTranslator.from_pretrained(str(self.folder), **how)

    def refused(self, *more: str, argv: Sequence[str] = ()) -> str:
        """The one line that a refused command says."""
        assert main(list(argv) or self.arguments(*more)) == 2
        error = self.capsys.readouterr().err
        message = error.strip().split("\n")[-1]
        assert "Traceback" not in error
        assert message.startswith("inference.py: ")
        return message


@pytest.fixture
def cli(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(folder, tmp_path, capsys)


def test_exact_is_greedy_at_any_batch(cli: Cli) -> None:
    expected = cli.infer("--strategy", "AR")
    assert len(set(expected)) > 5
    for batch in ("1", "3", "20"):
        flags = ["--strategy", "specdec", "--batch", batch, "--block-size", "5"]
        assert cli.infer(*flags) == expected


@pytest.mark.parametrize("schedule", ["heuristic", "target_confidence"])
@pytest.mark.parametrize("drafter", ["lookup", "assistant"])
def test_other_drafters_are_greedy_too(drafter: str, schedule: str, cli: Cli) -> None:
    expected = cli.infer("--strategy", "AR", "--batch", "20")
    flags = ["--drafter", drafter, "--schedule", schedule, "--batch", "6", "--block-size", "4"]
    flags += ["--path", str(cli.folder / "verifier.pt")]
    assert cli.infer(*flags) == expected


def test_a_checkpoint_that_no_drafter_reads_is_told(cli: Cli) -> None:
    """The published script always names one, so it is no error."""
    cli.infer("--drafter", "lookup", "--path", "none.pt")
    assert "--path none.pt is unused: drafter lookup reads no" in cli.capsys.readouterr().err
    for flags in (["--drafter", "block"], ["--strategy", "AR"]):
        cli.infer(*flags)
        assert "unused" not in cli.capsys.readouterr().err


def test_an_assistant_with_another_source_dictionary(cli: Cli) -> None:
    """Its symbols are found by name; those of the target must be the verifier's."""
    place = fairseq_checkpoints.assistant(cli.tmp / "assistant")
    lines = (place / "dict.en.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    (place / "dict.en.txt").write_text("".join(lines[::-1]), encoding="utf-8")
    flags = ["--drafter", "assistant", "--path", str(place / "assistant.pt")]
    expected = cli.infer("--strategy", "AR", "--batch", "20")
    drafted = [*flags, "--drafter-data", str(place), "--batch", "6"]
    assert cli.infer(*drafted) == expected
    own, theirs = (Dictionary.load(data / "dict.en.txt") for data in (cli.folder, place))
    assert [theirs.symbols[i] for i in own.ids_in(theirs)] == [
        s if s in theirs.symbols else "<unk>" for s in own.symbols
    ]
    assert "source symbols" in cli.refused(*flags)
    (place / "dict.de.txt").write_text("x 1\n", encoding="utf-8")
    message = cli.refused(*drafted)
    assert "the drafter's dict.de.txt is not the verifier's" in message


def test_samples_follow_the_seed_and_not_the_batch(cli: Cli) -> None:
    flags = ["--rule", "speculative_sampling", "--top-k", "4", "--temperature", "1.5"]
    one = cli.infer(*flags)
    assert "the verifier's distribution (temperature 1.5, top-k 4" in cli.capsys.readouterr().err
    assert cli.infer(*flags, "--batch", "7") == one
    assert cli.infer(*flags, "--seed", "1") != one


@pytest.mark.parametrize("beam", ["1", "4"])
def test_translations_are_those_of_fairseqs_search(beam: str, cli: Cli) -> None:
    """With beam 1, of greedy decoding that is like it."""
    common = ["--strategy", "AR", "--batch", "6", "--beam", beam]
    found = cli.records(*common, "--greedy-like", "fairseq")
    settings = cli.translator(strategy="AR").settings
    search = FairseqSearch(settings, int(beam), max_len=12, min_len=1)
    dictionary = Dictionary.load(cli.folder / "dict.en.txt")
    words = Dictionary.load(cli.folder / "dict.de.txt")
    wanted = search.search([dictionary.encode_line(line) for line in LINES])
    same = [
        words.string(ids).split() == one["tokens"] for ids, one in zip(wanted, found, strict=True)
    ]
    # What has no end within the limit is cut by greedy decoding, and ended by a search.
    cut = [one["finish_reason"] == "length" and beam == "1" for one in found]
    assert all(one or other for one, other in zip(same, cut, strict=True))
    assert sum(same) >= 2


def test_a_beam_alone_means_the_strategy_ar(cli: Cli) -> None:
    flags = ["--batch", "3", "--beam", "3", "--no-repeat-ngram-size", "2"]
    found = cli.infer("--strategy", "AR", *flags)
    assert found != cli.infer("--strategy", "AR")
    assert cli.infer(*flags) == found
    # As published, where strategies had a beam that one of them used.
    assert cli.infer("--strategy", "specdec", "--beam", "3") == cli.infer("--strategy", "AR")
    for line in found:
        pairs = [*pairwise(line.split())]
        assert len(pairs) == len(set(pairs))


def test_n_best_lists(cli: Cli) -> None:
    """On the command line, in JSON lines, and in Python, of a translator that speculates."""
    lines = [*LINES[:5], "", *LINES[5:]]
    plain = cli.infer("--beam", "4", "--batch", "6", lines=lines)
    found = cli.records("--beam", "4", "--n-best", "3", "--batch", "6")
    assert [one["text"] for one in found] == plain
    rows = [line.split(" ||| ") for line in cli.out.read_text(encoding="utf-8").splitlines()]
    for number, (one, text) in enumerate(zip(found, plain, strict=True)):
        best = one["n_best"] if text else [{"text": "", "log_prob": 0, "score": 0, "tokens": []}]
        assert len(best) == (3 if text else 1)
        own = [row for row in rows if row[0] == str(number)]
        assert [row[1] for row in own] == [ranked["text"] for ranked in best]
        for row, ranked in zip(own, best, strict=True):
            total, score, length = ranked["log_prob"], ranked["score"], len(ranked["tokens"]) + 1
            assert row[2:] == [f"F0= {total:.6f}", f"{score:.6f}"]
            assert score == pytest.approx(total / length)
            assert total <= sum(ranked.get("token_scores", []))  # the end has a share, too
            assert len(ranked.get("token_scores", [])) == length - 1
    done = cli.translator(batch=6).translate(lines, beam=4, n_best=3)
    assert [[one.text for one in row.n_best] for row in done if row.text] == [
        [ranked["text"] for ranked in one["n_best"]] for one in found if one["text"]
    ]
    assert "omit one of them" in cli.refused("--beam", "4", "--n-best", "2", "--resume")


def test_hypotheses_of_one_text_do_not_shorten_the_list() -> None:
    """Of this beam's best three, two are one text in other pieces."""
    bundled = SpeculativeTranslator.from_pretrained(str(BUNDLED), device="cpu")
    done = bundled.translate("She forgot her keys on the kitchen table.", beam=4, n_best=3)
    assert len({one.text for one in done.n_best}) == 3
    refused("n_best must be 1 to the beam's size of 2", bundled.translate, "Go.", beam=2, n_best=3)


def test_a_least_length_is_no_longer_than_the_longest(cli: Cli) -> None:
    told = "--min-len 13 is longer than a translation may be, 12 tokens; ask for fewer"
    assert told in cli.refused("--min-len", "13", "--max-len-a", "0")
    assert len(cli.infer("--min-len", "12", "--max-len-a", "0")) == len(LINES)


def test_a_glossary_is_kept(cli: Cli) -> None:
    terms = cli.tmp / "terms.tsv"
    terms.write_text("s7 s10\ts3 s4\ns0\ts9\n", encoding="utf-8")
    for line, said in zip(LINES, cli.infer("--glossary", str(terms)), strict=True):
        assert said.split().count("s9") >= line.split().count("s0")
        assert f" {said} ".count(" s3 s4 ") >= f" {line} ".count(" s7 s10 ")
    assert "terms.tsv: is an input" in cli.refused("--glossary", str(terms), "-o", str(terms))
    told = "--glossary belongs to a beam search"
    assert told in cli.refused("--strategy", "specdec", "--glossary", str(terms))


def test_leaving_the_decoder_early(cli: Cli) -> None:
    exact = cli.infer("--strategy", "AR")
    drafter = ["--drafter", "early_exit", "--drafter-options", '{"exit_layer": 1}']
    assert cli.infer(*drafter, "--batch", "7", "--block-size", "4") == exact
    early = cli.infer("--strategy", "early-exit", "--exit-layer", "1")
    assert len(early) == len(exact)
    assert early != exact
    last = cli.infer("--strategy", "early-exit", "--exit-layer", "2")
    assert last == exact


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_prefixes_are_honoured(strategy: str, cli: Cli) -> None:
    flags = ["--strategy", strategy, "--beam", "2", "--batch", "3"]
    flags += ["--prefix-file", str(file := cli.tmp / "prefixes")]

    def infer(words: str, *more: str) -> list[str]:
        file.write_text("\n".join(words if i % 2 else "" for i in range(6)), encoding="utf-8")
        return cli.infer(*flags, *more, lines=LINES[:6])

    done = infer("s1 s2")
    assert all(line.startswith("s1 s2") for line in done[1::2])
    assert infer("s1 s2 s3", "--prefix-size", "2") == done
    assert infer("s1 s2 s3", "--prefix-size", "9")[1::2] == ["s1 s2 s3"] * 3


def test_what_the_models_positions_cut_is_no_ended_sentence(cli: Cli) -> None:
    """The verifier has 40 positions, and one is the end's."""
    flags = ["--strategy", "AR", "--beam", "2", "--max-len-b", "100", "--batch", "20"]
    found = cli.records(*flags)
    reasons = [record["finish_reason"] for record in found]
    assert reasons == ["length" if len(record["tokens"]) == 38 else "eos" for record in found]
    assert set(reasons) == {"length", "eos"}


def test_raw_text(cli: Cli) -> None:
    codes = cli.tmp / "codes"
    codes.write_text("#version: 0.2\ns 1</w>\n", encoding="utf-8")
    raw = ["--tokenizer", "moses", "--bpe", "subword_nmt", "--bpe-codes", str(codes)]
    [first, white] = cli.infer(*raw, lines=["s1, s1 s1.", " "])
    pieces = cli.infer("--remove-bpe", "none", lines=["s1 , s1 s1 ."])
    # Symbols have no subwords here, so only the tokeniser shows.
    assert first.replace(" ", "") == pieces[0].replace(" ", "").replace("&lt;", "<")
    assert white == " "
    (prefix := cli.tmp / "prefix").write_text("你\n", encoding="utf-8")
    told = "line 1: target prefix: has what the model cannot write"
    assert told in cli.refused(*raw, "--prefix-file", str(prefix))


def test_the_python_interface_gives_the_same(cli: Cli) -> None:
    translator = cli.translator(batch=4)
    done = translator.translate(LINES)
    records = cli.records()
    assert [t.text for t in done] == [r["text"] for r in records]
    assert [t.score for t in done] == pytest.approx([r["score"] for r in records])
    assert translator.stats.rounds == sum(t.rounds for t in done)
    assert list(translator.stream(LINES[5]))[-1] == done[5].text
    again = translator.translate_tokens([line.split() for line in LINES])
    assert [t.tokens for t in again] == [t.tokens for t in done]


def test_the_drafter_alone_needs_no_verifier(cli: Cli) -> None:
    expected = cli.infer("--strategy", "drafter")
    argv = [flag for flag in cli.arguments() if "verifier" not in flag and flag != "--AR-path"]
    cli.out.unlink()
    assert main([*argv, "--strategy", "drafter"]) in DONE
    assert cli.out.read_text().split("\n")[:-1] == expected


def broken_after(monkeypatch: pytest.MonkeyPatch, buffers: int, error: BaseException) -> None:
    """Let decoding fail after some buffers."""
    real = SpeculativeTranslator.translate_sentences
    left = [buffers]

    def failing(self: SpeculativeTranslator, *args: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise error
        return real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(SpeculativeTranslator, "translate_sentences", failing)


def test_an_interrupted_run_is_continued(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    expected = cli.infer()
    out, records = cli.out, cli.json
    flags = ["--buffer-size", "6", "--json-path", str(records)]
    with monkeypatch.context() as patch:
        broken_after(patch, 2, KeyboardInterrupt())
        assert main(cli.arguments(*flags)) == 130
    assert "--resume continues it" in cli.capsys.readouterr().err
    assert out.read_text().split("\n")[:-1] == expected[:12]
    out.write_text(out.read_text() + "half a li")
    records.write_text("".join(records.read_text().splitlines(keepends=True)[:12]) + '{"id": 13')
    message = cli.refused(*flags, "--resume", "--beta", "2")
    assert "was started with --beta 1, not --beta 2" in message
    assert cli.infer(*flags, "--resume", "--batch", "3") == expected
    ids = [json.loads(line)["id"] for line in records.read_text().splitlines()]
    assert ids == list(range(1, 21))
    assert not (cli.tmp / "out.resume").exists()
    assert cli.infer(*flags, "--resume") == expected


def test_who_starts_an_interrupted_run_anew_is_told_so(
    monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    with monkeypatch.context() as patch:
        broken_after(patch, 2, KeyboardInterrupt())
        assert main(cli.arguments("--buffer-size", "6")) == 130
    cli.capsys.readouterr()
    for told in (True, False):  # the second replaces one that has finished
        main(cli.arguments())
        replaced = "the 12 lines of a run that did not finish are replaced; --resume"
        assert (replaced in cli.capsys.readouterr().err) == told


def test_what_cannot_be_continued_is_not_promised_to_be(
    monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    broken_after(monkeypatch, 1, KeyboardInterrupt())
    assert main(cli.arguments("--output-path", "/dev/null", "--buffer-size", "6")) == 130
    told = cli.capsys.readouterr().err.splitlines()[-1]
    assert told == "inference.py: interrupted; the output holds complete lines only."


def test_nothing_is_promised_of_an_output_that_is_not_begun(
    monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    cli.out.write_text("earlier\n")
    broken_after(monkeypatch, 0, KeyboardInterrupt())
    assert main(cli.arguments()) == 130
    told = cli.capsys.readouterr().err.splitlines()[-1]
    assert told == "inference.py: interrupted before a line was written."
    assert cli.out.read_text() == "earlier\n"


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (b"s1\n\xff\n", "", "line 2: not UTF-8"),
        (b"s1\n", "--block-size 7", "was trained for blocks of 6 tokens"),
        (b"s1\n", "--bpe subword_nmt --bpe-codes none", "none: the BPE codes cannot be read"),
        (b"s1\n", "-s fr", "dict.fr.txt"),
        (b"s1\n", "-s de -t en", "was trained from en to de; swap --source-lang and --target-lang"),
        (b"s1\n", "--path none.pt", "none.pt: "),
        (b"s1\n", "--drafter assistant", "drafter.pt: this is a block drafter"),
        (b"s1\n", "--strategy drafter --drafter lookup", "cannot decode alone"),
        (b"s1\n", "--strategy early-exit --exit-layer 3", "no exit after layer 3"),
        (b"s1\n", '--drafter early_exit --drafter-options {"exit_layer":2}', "no exit after layer"),
        (b"s1\n", '--drafter-options {"x":1}', "of drafter 'block'; its options"),
    ],
)
def test_bad_input_is_said_in_a_line(content: bytes, flags: str, message: str, cli: Cli) -> None:
    cli.source = cli.tmp / "in"
    cli.source.write_bytes(content)
    assert message in cli.refused(*flags.split())
    assert not cli.out.exists()
    assert not (cli.tmp / "out.resume").exists()


@pytest.mark.parametrize("more", [[], ["--strategy", "AR", "--beam", "5"], ["--resume"]])
def test_an_empty_input_gives_an_empty_output(more: list[str], cli: Cli) -> None:
    cli.source = cli.tmp / "in"
    cli.source.touch()
    assert main(cli.arguments("--json-path", str(cli.json), *more)) in DONE
    assert cli.out.read_bytes() == cli.json.read_bytes() == b""
    assert not (cli.tmp / "out.resume").exists()


def test_lines_before_a_bad_buffer_are_kept(cli: Cli) -> None:
    cli.source = cli.tmp / "in"
    cli.source.write_bytes(b"s1\ns2\ns3\n\xff\n")
    assert "line 4" in cli.refused("--buffer-size", "2")
    assert cli.out.read_text().count("\n") == 2


def test_an_old_output_survives_what_is_refused_early(cli: Cli) -> None:
    cli.out.write_text("precious\n")
    cli.refused("--path", "none.pt")
    assert cli.out.read_text() == "precious\n"
    assert "is an input as well" in cli.refused("--input-path", str(cli.out))
    place = f"{cli.out}.resume"  # of the run's own record
    assert "OUTPUT.resume" in cli.refused("--json-path", place)
    shutil.copy(cli.out, place)
    for flags in ([], ["--resume"]):
        assert "not the record of a run" in cli.refused("--input-path", place, *flags)
    assert Path(place).read_text() == "precious\n"


def test_files_that_differ_in_length_are_named(cli: Cli) -> None:
    short = cli.tmp / "short"
    short.write_text("s1\n")
    assert "short: has 1 lines, fewer than" in cli.refused("--prefix-file", str(short))


def test_a_folder_that_does_not_say_its_direction(cli: Cli) -> None:
    argv = [flag for flag in cli.arguments() if flag not in ("-s", "-t", "en", "de")]
    assert main(argv) in DONE  # as the checkpoint says it
    assert "swap --source-lang" in cli.refused(argv=[*argv, "--target-lang", "en"])


def test_memory_that_does_not_suffice_is_told_and_bugs_keep_their_trace(
    monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    broken_after(monkeypatch, 0, torch.OutOfMemoryError("4 GiB"))
    assert "use a smaller --batch" in cli.refused()
    for error in (MemoryError(), RuntimeError("you tried 8 bytes. Cannot allocate memory")):
        broken_after(monkeypatch, 0, error)
        assert "out of memory; end other programs" in cli.refused()
    broken_after(monkeypatch, 0, SafetensorError("I/O error: No space left (os error 28)"))
    assert "No space left on device; make room" in cli.refused()
    broken_after(monkeypatch, 0, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(cli.arguments())


def test_debug_shows_where(cli: Cli) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        main(cli.arguments("--input-path", str(cli.tmp / "none"), "--debug"))


@pytest.mark.integration
def test_the_script_flows_in_a_pipe_and_takes_flags(folder: Path) -> None:
    flags = ["--path", folder / "drafter.pt", "--AR-path", folder / "verifier.pt"]
    flags += ["--input-path", "-", "--output-path", "-"]
    flags += ["--cpu", "--beta", "3", "--tau", "1.0", "--block-size", "5", "--max-len-b", "9"]
    script = ROOT / "scripts" / "inference.sh"
    with talking_to(script, folder, *flags) as (process, into, out):
        for _ in range(2):
            into.write(b"s1 s2\n")
            into.flush()
            assert out.readline().endswith(b"\n")  # before the input has ended
        into.write(b"\ns3")
        rest, summary = process.communicate()
    assert process.returncode in DONE
    assert rest.count(b"\n") == 2
    assert b"4 sentences (1 empty" in summary
    assert b"blocks of 5" in summary
    assert b"rule top_beta (beta 3, tau 1)" in summary


@pytest.mark.integration
def test_ctrl_c_leaves_complete_lines(cli: Cli) -> None:
    flags = ["--strategy", "AR", "--input-path", "-", "--buffer-size", "1"]
    command = [sys.executable, ROOT / "inference.py", *cli.arguments(*flags)]
    with talking_to(*command) as (process, into, _):
        into.write(b"s1 s2\ns3\n")
        into.flush()
        while not cli.out.exists() or cli.out.read_bytes().count(b"\n") < 2:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, message = process.communicate()
    assert process.returncode == INTERRUPTED
    assert b"Traceback" not in message
    assert cli.out.read_bytes().count(b"\n") == 2
    assert cli.out.read_bytes().endswith(b"\n")


@pytest.mark.integration
def test_a_reader_that_has_enough_ends_the_run(cli: Cli) -> None:
    flags = ["--output-path", "-", "--strategy", "AR", "--buffer-size", "1", "--max-len-b", "3"]
    command = [sys.executable, ROOT / "inference.py", *cli.arguments(*flags)]
    with talking_to(*command) as (process, _, out):
        out.readline()
        out.close()
        assert process.stderr is not None
        message = process.stderr.read()
    assert process.returncode == BROKEN_PIPE
    assert b"Traceback" not in message


def test_a_line_without_numbers_is_empty_and_the_status_says_so(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = cli.infer()
    score = TransformerVerifier.score

    def overflowing(self: TransformerVerifier, prefix: Prefix, draft: Draft) -> Scores:
        scores = score(self, prefix, draft)
        long = prefix.lengths > 3
        return Scores(scores.logits.masked_fill(long[:, None, None], torch.nan))

    monkeypatch.setattr(TransformerVerifier, "score", overflowing)
    cli.out.unlink()
    assert main(cli.arguments()) == 1
    told = cli.capsys.readouterr().err
    lines = cli.out.read_text().split("\n")[:-1]
    empty = [number for number, line in enumerate(lines, 1) if not line]
    assert [line for line in lines if line] == [
        good for n, good in enumerate(expected, 1) if n not in empty
    ]
    first, others = empty[:10], len(empty[10:])
    for number in first:
        assert f"in, line {number}: is left empty, as the model's scores are not numbers" in told
    assert others
    assert f"lines {', '.join(map(str, first))} and {others} more: left empty" in told

"""What users call a language, and what models do."""

import pytest

from specdec_plugins.formats.pretrained.languages import find, name_of, plain, published


@pytest.mark.parametrize(
    ("asked", "nllb", "m2m", "mbart"),
    [
        ("DE", "deu_Latn", "de", "de_DE"),
        ("de-AT", "deu_Latn", "de", "de_DE"),
        ("ger", "deu_Latn", "de", "de_DE"),
        ("German", "deu_Latn", "de", "de_DE"),
        ("pt_BR", "por_Latn", "pt", "pt_XX"),
        ("zh", "zho_Hans", "zh", "zh_CN"),
        ("zh-CN", "zho_Hans", "zh", "zh_CN"),
        ("zh-TW", "zho_Hant", None, None),
        ("ko", "kor_Hang", "ko", "ko_KR"),
        ("nb", "nob_Latn", "no", None),
        ("no", "nob_Latn", "no", None),
        ("ps", "pbt_Arab", "ps", "ps_AF"),
        ("pus", "pbt_Arab", "ps", "ps_AF"),
        ("qu", "quy_Latn", None, None),
        ("ff", "fuv_Latn", "ff", None),
        ("iw", "heb_Hebr", "he", "he_IL"),
        ("bs", "bos_Latn", "bs", None),  # and not Croatian
        ("xx", None, None, None),
        ("no language", None, None, None),
    ],
)
def test_a_language_is_found_by_any_usual_name(
    asked: str, nllb: str | None, m2m: str | None, mbart: str | None
) -> None:
    known = [published(name) for name in ("nllb200", "m2m100", "mbart50")]
    assert [find(asked, codes) for codes in known] == [nllb, m2m, mbart]


@pytest.mark.parametrize("name", ["nllb200", "m2m100", "wmt21", "mbart25", "mbart50"])
def test_each_code_stands_for_itself(name: str) -> None:
    codes = published(name)
    assert [find(code, codes) for code in codes] == codes


def test_groups_of_opus_mt_have_codes_of_three_letters() -> None:
    known = ["deu", "nld", "cmn_Hans", "cmn_Hant", "por"]
    asked = ["de-DE", "NL", "zh-CN", "zh_TW", "pt_BR", "en"]
    assert [find(one, known) for one in asked] == [
        "deu", "nld", "cmn_Hans", "cmn_Hant", "por", None
    ]  # fmt: skip


def test_names() -> None:
    codes = "deu_Latn", "de_DE", "zho_Hant", "en_XX", "xx", "zle"
    names = "German", "German", "Chinese (Traditional)", "English", "xx", "East Slavic languages"
    assert tuple(map(name_of, codes)) == names
    assert [*map(plain, ("deu_Latn", "DE", "ger", "src-lang"))] == ["de", "de", "de", "src"]

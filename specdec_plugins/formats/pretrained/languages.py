"""The languages of the published models, in the order of their tokens, and what they are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import langcodes
from langcodes import Language, closest_match
from langcodes.tag_parser import LanguageTagError

from specdec_plugins.errors import UserError, require

# Used for folders without a list of their added tokens.
_PUBLISHED = {
    "m2m100": """
        af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu
        ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr
        ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk
        ur uz vi wo xh yi yo zh zu
    """,
    "wmt21": """
        en ha is ja cs ru zh de
    """,
    "nllb200": """
        ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn amh_Ethi apc_Arab
        arb_Arab ars_Arab ary_Arab arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn
        bak_Cyrl bam_Latn ban_Latn bel_Cyrl bem_Latn ben_Beng bho_Deva bjn_Arab bjn_Latn bod_Tibt
        bos_Latn bug_Latn bul_Cyrl cat_Latn ceb_Latn ces_Latn cjk_Latn ckb_Arab crh_Latn cym_Latn
        dan_Latn deu_Latn dik_Latn dyu_Latn dzo_Tibt ell_Grek eng_Latn epo_Latn est_Latn eus_Latn
        ewe_Latn fao_Latn pes_Arab fij_Latn fin_Latn fon_Latn fra_Latn fur_Latn fuv_Latn gla_Latn
        gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn hau_Latn heb_Hebr hin_Deva hne_Deva hrv_Latn
        hun_Latn hye_Armn ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn jav_Latn jpn_Jpan kab_Latn
        kac_Latn kam_Latn kan_Knda kas_Arab kas_Deva kat_Geor knc_Arab knc_Latn kaz_Cyrl kbp_Latn
        kea_Latn khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn kon_Latn kor_Hang kmr_Latn lao_Laoo
        lvs_Latn lij_Latn lim_Latn lin_Latn lit_Latn lmo_Latn ltg_Latn ltz_Latn lua_Latn lug_Latn
        luo_Latn lus_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Latn mkd_Cyrl plt_Latn mlt_Latn
        mni_Beng khk_Cyrl mos_Latn mri_Latn zsm_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva
        nso_Latn nus_Latn nya_Latn oci_Latn gaz_Latn ory_Orya pag_Latn pan_Guru pap_Latn pol_Latn
        por_Latn prs_Arab pbt_Arab quy_Latn ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Beng
        scn_Latn shn_Mymr sin_Sinh slk_Latn slv_Latn smo_Latn sna_Latn snd_Arab som_Latn sot_Latn
        spa_Latn als_Latn srd_Latn srp_Cyrl ssw_Latn sun_Latn swe_Latn swh_Latn szl_Latn tam_Taml
        tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi taq_Latn taq_Tfng tpi_Latn tsn_Latn
        tso_Latn tuk_Latn tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab ukr_Cyrl umb_Latn urd_Arab
        uzn_Latn vec_Latn vie_Latn war_Latn wol_Latn xho_Latn ydd_Hebr yor_Latn yue_Hant zho_Hans
        zho_Hant zul_Latn
    """,
    "mbart25": """
        ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT
        lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN
    """,
    "mbart50": """
        af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF
        pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI
    """,
}

# Of langcodes: what lies between a language and its variant of another country, which is at most
# this far; Croatian is 8 or 9 from Bosnian and Serbian.
_MOST_APART = 5
# Languages of NLLB that langcodes does not know as members of these.
_MEMBERS = {"ff": "fuv", "ps": "pbt", "qu": "quy"}


@dataclass(frozen=True)
class Languages:
    """The languages that a model reads and writes, under its own names; empty if unknown."""

    model: str  # what messages call it
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    source: str | None = None  # by default; None = the only one, or one must be chosen
    target: str | None = None
    may_lack: bool = False  # without languages, texts say themselves what is to be done

    def choose(self, source: str | None, target: str | None) -> tuple[str | None, str | None]:
        """The model's names of the languages; None where none is requested and none is the default.

        Raises UserError for a language that the model does not have, listing those that it has.
        """
        return (
            self._choose("source", source, self.sources, self.source),
            self._choose("target", target, self.targets, self.target),
        )

    def _choose(
        self, side: str, asked: str | None, known: Sequence[str], default: str | None
    ) -> str | None:
        if not known:
            return asked
        if asked is None and self.may_lack:
            return None
        if asked is None:
            return known[0] if len(known) == 1 else find(default or "", known)
        found = find(asked, known) if isinstance(asked, str) else None
        does = "read" if side == "source" else "write"
        require(
            found is not None,
            f"{self.model} does not {does} {asked!r}; give a {side} language of: "
            f"{', '.join(known)}{', or no language' if self.may_lack else ''}.",
        )
        return found

    def unchosen(self, side: str) -> UserError:
        """The error for a language that must be chosen."""
        known = self.sources if side == "source" else self.targets
        return UserError(
            f"{self.model} has several {side} languages; choose one, with --{side}-lang or in the "
            f"request: {', '.join(known)}."
        )


def published(name: str) -> list[str]:
    """The languages of a model; for mBART-50, those of mBART come first."""
    codes = _PUBLISHED[name].split()
    return published("mbart25") + codes if name == "mbart50" else codes


def plain(code: str) -> str:
    """The shortest code of a language that is called `deu_Latn`, `de_DE`, `ger` or `German`."""
    language = _understood(code)
    return re.split("[_-]", code)[0].lower() if language is None else language.language or code


def code_of(name: str, flag: str) -> str:
    """The `plain` code of a language that a user gave. Raises UserError for what is none."""
    code = plain(name)
    require(
        re.fullmatch("[a-z]{2,3}", code) is not None,
        f"{flag} {name}: expected the code of a language, such as de or de_DE",
    )
    return code


def name_of(code: str) -> str:
    """The English name, with the script of a code that has one; the code itself if it is none."""
    language = _understood(code)
    if language is None or not language.is_valid():
        return code
    return str(Language.make(language.language, script=language.script).display_name())


def find(asked: str, known: Sequence[str]) -> str | None:
    """The known code that `asked` means, in any usual way to write it; the nearest of several.

    A language without a script means that in which it is usually written.
    """
    if asked in known:
        return asked
    wanted = _understood(asked)
    if wanted is None:
        return None
    codes = {str(tag): code for code in known if (tag := _understood(code)) is not None}
    nearest, _ = closest_match(wanted, [*codes], max_distance=_MOST_APART)
    if nearest in codes:
        return codes[nearest]
    # ko is ko_Kore to langcodes, and kor_Hang to NLLB.
    alike = [code for tag, code in codes.items() if Language.get(tag).language == str(wanted)]
    if len(alike) == 1:
        return alike[0]
    member = _MEMBERS.get(wanted.language or "")
    return find(member, known) if member else None


def _understood(name: str) -> Language | None:
    try:
        return Language.get(name)
    except LanguageTagError:
        try:
            return langcodes.find(name)
        except LookupError:
            return None

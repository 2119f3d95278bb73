"""Crossword clues, from a file of JSON lines or from facts in the package.

`canonical` is the form in which answers are compared.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, combinations_with_replacement

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.configuration.bounds import Natural, Positive
from rl4p.configuration.capability import ReadPath
from rl4p.data.files import JSONLines
from rl4p.data.prompts import Prompting
from rl4p.data.rows import digest

CAPITALS = """
Albania Tirana; Algeria Algiers; Argentina Buenos Aires; Armenia Yerevan; Australia Canberra;
Austria Vienna; Azerbaijan Baku; Bangladesh Dhaka; Belarus Minsk; Belgium Brussels; Bulgaria Sofia;
Cambodia Phnom Penh; Canada Ottawa; Chile Santiago; China Beijing; Colombia Bogotá; Croatia Zagreb;
Cuba Havana; Cyprus Nicosia; Denmark Copenhagen; Ecuador Quito; Egypt Cairo; Estonia Tallinn;
Ethiopia Addis Ababa; Finland Helsinki; France Paris; Georgia Tbilisi; Germany Berlin; Ghana Accra;
Greece Athens; Hungary Budapest; Iceland Reykjavík; India New Delhi; Indonesia Jakarta; Iran Tehran;
Iraq Baghdad; Ireland Dublin; Italy Rome; Jamaica Kingston; Japan Tokyo; Jordan Amman;
Kenya Nairobi; Latvia Riga; Lebanon Beirut; Libya Tripoli; Lithuania Vilnius; Malta Valletta;
Mexico Mexico City; Moldova Chișinău; Mongolia Ulaanbaatar; Morocco Rabat; Nepal Kathmandu;
Norway Oslo; Oman Muscat;
Pakistan Islamabad; Peru Lima; Philippines Manila; Poland Warsaw; Portugal Lisbon; Qatar Doha;
Romania Bucharest; Russia Moscow; Senegal Dakar; Serbia Belgrade; Slovakia Bratislava;
Slovenia Ljubljana; Spain Madrid; Sudan Khartoum; Sweden Stockholm; Syria Damascus;
Thailand Bangkok; Tunisia Tunis; Turkey Ankara; Uganda Kampala; Ukraine Kyiv; Uruguay Montevideo;
Vietnam Hanoi; Zambia Lusaka; Zimbabwe Harare
"""

# In the order of their atomic numbers, from 1.
ELEMENTS = """
H Hydrogen He Helium Li Lithium Be Beryllium B Boron C Carbon N Nitrogen O Oxygen F Fluorine Ne Neon
Na Sodium Mg Magnesium Al Aluminium Si Silicon P Phosphorus S Sulfur Cl Chlorine Ar Argon
K Potassium Ca Calcium Sc Scandium Ti Titanium V Vanadium Cr Chromium Mn Manganese Fe Iron Co Cobalt
Ni Nickel Cu Copper Zn Zinc Ga Gallium Ge Germanium As Arsenic Se Selenium Br Bromine Kr Krypton
Rb Rubidium Sr Strontium Y Yttrium Zr Zirconium Nb Niobium Mo Molybdenum Tc Technetium Ru Ruthenium
Rh Rhodium Pd Palladium Ag Silver Cd Cadmium In Indium Sn Tin Sb Antimony Te Tellurium I Iodine
Xe Xenon
"""

ONES = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
"""
NUMBERS = ONES.split()
for ten in ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"):
    NUMBERS += [ten, *(f"{ten}-{one}" for one in NUMBERS[1:10])]  # to 99

ORDERS = {
    "month": (
        "January February March April May June July August September October November December"
    ),
    "day of the week": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "planet from the Sun": "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune",
    "letter of the Greek alphabet": (
        "Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa Lambda Mu Nu Xi Omicron Pi Rho "
        "Sigma Tau Upsilon Phi Chi Psi Omega"
    ),
}
ORDINALS = """
first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth
fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth twenty-first
twenty-second twenty-third twenty-fourth
"""


def clues() -> Iterator[tuple[str, str]]:
    """Yields clues and their answers; every clue once."""
    for row in CAPITALS.replace("\n", " ").split(";"):
        country, capital = row.strip().split(" ", 1)
        yield f"Capital of {country}", capital
    words = ELEMENTS.split()
    for number, (symbol, name) in enumerate(zip(words[::2], words[1::2], strict=True), 1):
        yield f"Element with the symbol {symbol}", name
        yield f"Element number {number}", name
    for kind, names in ORDERS.items():
        for ordinal, name in zip(ORDINALS.split(), names.split(), strict=False):
            yield f"{ordinal.capitalize()} {kind}", name
    for number, word in enumerate(NUMBERS):
        yield f"{number}, in words", word
    for a, b in combinations_with_replacement(range(2, 10), 2):
        yield f"{NUMBERS[a].capitalize()} times {NUMBERS[b]}", NUMBERS[a * b]


def words_of(text: str) -> list[str]:
    """Returns the words of a text in canonical letters: NFKD, no accents, & as AND, A-Z only.

    Anything but a letter, an accent or & separates words: ``R&D É-1`` has the words RANDD and E.
    """
    text = unicodedata.normalize("NFKD", text)
    text = "".join(letter for letter in text if not unicodedata.combining(letter))
    return re.findall("[A-Z]+", text.replace("&", "AND").upper())


def canonical(text: str) -> str:
    """Returns the letters that stand in the grid: ``R&D É-1`` is RANDDE."""
    return "".join(words_of(text))


def contains(text: str, answer: str) -> bool:
    """Returns whether whole words of a text are the answer in its canonical form.

    The answer NEWYORK is in "It is New York." and in "NEWYORK", but not in "New Yorkers".
    """
    words, wanted = words_of(text), canonical(answer)
    letters, bounds = "".join(words), set(accumulate(map(len, words), initial=0))
    at = letters.find(wanted) if wanted else -1
    while at >= 0:
        if at in bounds and at + len(wanted) in bounds:
            return True
        at = letters.find(wanted, at + 1)
    return False


LENGTH_AT_END = re.compile(r"\(\s*\d[\d\s,.-]*(letters?)?\s*\)\s*$")


@dataclass(frozen=True, kw_only=True)
class Crossword(Prompting):
    """A data set of crossword clues, each with one answer.

    A file has one JSON object per line, with the fields `clue` and `answer`. Without a file, clues
    are made from facts: capitals, chemical elements, numbers in words, and months, days, planets
    and Greek letters in their order. There are about 370, enough to try a recipe.

    Attributes:
      path: the file to train on; None uses the facts.
      held_out_path: a file whose rows are all used for evaluation.
      held_out_size: without a `held_out_path`, the number of clues held out of training; None is
        256 of a file and 64 of the facts.
      question_key, answer_key: the names of the fields.
      letters: whether to put the number of letters after a clue that does not end with one:
        "Capital of Norway (4 letters)".
      seed: the seed by which facts are ordered and held out; the run's seed orders them again.
    """

    path: ReadPath | None = None
    held_out_path: ReadPath | None = None
    held_out_size: Positive | None = None
    question_key: str = "clue"
    answer_key: str = "answer"
    letters: bool = True
    seed: Natural = 0

    def __post_init__(self) -> None:
        if self.held_out_path is not None and self.path is None:
            raise ValueError("held_out_path needs a path, the file to train on: set it too.")
        if self.path is not None and self.seed != 0:
            raise ValueError("seed orders the clues of the package only: leave it out with a path.")
        if self.path is None and self.kept_back >= len(list(clues())):
            raise ValueError(
                f"held_out_size={self.kept_back} holds out all {len(list(clues()))} clues of the "
                "package: set a smaller value, or set path."
            )
        if self.path is not None:
            _ = self.file  # its construction refuses options that do not go together

    @property
    def kept_back(self) -> int:
        """The number of the package's clues that are held out."""
        return 64 if self.held_out_size is None else self.held_out_size

    @cached_property
    def file(self) -> JSONLines:
        return JSONLines(
            path=self.path or "",
            held_out_path=self.held_out_path,
            held_out_size=self.held_out_size,
            question_key=self.question_key,
            answer_key=self.answer_key,
            reference_key=self.answer_key,
            task="crossword",
        )

    @cached_property
    def facts(self) -> list[Question]:
        rows = [
            Question(
                id=f"crossword/{digest(clue)}",
                question=clue,
                answer=answer.upper(),
                task="crossword",
            )
            for clue, answer in clues()
        ]
        order = np.random.Generator(np.random.Philox(self.seed)).permutation(len(rows))
        return [self.with_letters(rows[i]) for i in order]

    def train(self) -> Sequence[Question]:
        if self.path is None:
            return self.facts[self.kept_back :]
        return [self.with_letters(row) for row in self.file.train()]

    def held_out(self) -> Sequence[Question]:
        if self.path is None:
            return self.facts[: self.kept_back]
        return [self.with_letters(row) for row in self.file.held_out()]

    def with_letters(self, row: Question) -> Question:
        """Returns the row with the length of its answer in the clue, and a solution in tags."""
        letters = len(canonical(row.answer))
        if letters == 0:
            raise InputError(
                f"The answer {row.answer!r} to the clue {row.question!r} has no letters A-Z: "
                "correct the row, or leave it out."
            )
        clue = row.question.strip()
        if self.letters and not LENGTH_AT_END.search(clue):
            clue += f" ({letters} letters)"
        return replace(row, question=clue, solution=f"<answer>{row.answer}</answer>")

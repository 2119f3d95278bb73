"""Facts for crossword clues: capitals, chemical elements, numbers and orders."""

from collections.abc import Iterator

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
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"

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


def number_word(number: int) -> str:
    """Returns a number from 0 to 99 in words: `twenty-one`."""
    if number < 20:
        return ONES.split()[number]
    tens = TENS.split()[number // 10 - 2]
    return f"{tens}-{number_word(number % 10)}" if number % 10 else tens


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
    for number in range(100):
        yield f"{number}, in words", number_word(number)
    for ones in range(2, 10):
        for others in range(ones, 10):
            word = number_word(ones * others)
            yield f"{number_word(ones).capitalize()} times {number_word(others)}", word

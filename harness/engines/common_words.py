"""Common English words: each is one token in the usual vocabularies, with the space before it and without.

They make text for servers whose tokenizer is unknown; the first word of a text has no space before it. They
were looked up in the vocabularies of GPT-2, GPT-4, GPT-4o, DeepSeek-V3 and SmolLM2. How many tokens such a
text has is measured all the same (`harness.engines.running.trial`).
"""

_TEXT = """
the and that for you with was are not from have this can his has but all will they out who their more
one said your which about were had would off man per other been like any them her there year some when
than over also part time what new get just into people its work she our him only how after play could
first act two back under may most did add again know need want see even these use because now make then
every look where years should right through way very being does down many call before well much those
such end long think own set show say good start made last count point used same while game report still
here world though take going hand between ear against high help found person great sign run follow find
team system lead around car law read real support really fact day both three each during too public war
power few different state head another child since life develop pass turn second something month without
leg put quest never level art things might effect allow feel result lot fun using big ask best number
must direct open post come week far place form stand next let little mark bus invest hard import test
rest full care case less list top home left better data build main including got interest keep class
small plan percent camp pay process program name four return called move group men cap current pop
always women old near free design change book away able country order million thing why school days
health friend tell talk until later view word cost give large win important business clear kind mean
past story season claim within line project control air money family making bit sit light water times
company example actually ever tax major often human job available record sing news hour having product
deal side reason official hold city children once night done working body whether author seen course
event short press doing thought question given fund went games won love complete account young along
according yet members among low likely access known early sent today market based strong problem social
months five players success present try land local former close getting face value area key mind future
cut video net connect above amount either fail special black looking fire almost study miss community
media food comes single half quick issue else consider true ago added bad similar character type history
live self room fall sound object player rather service nothing party exist house sum function front
"""
COMMON_WORDS = tuple(_TEXT.split())

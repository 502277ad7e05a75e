"""Common English words: in the usual vocabularies each of them is one token with the space before it.

They make text for servers whose tokenizer is unknown. How many tokens such a text has is measured all the
same (`harness.engines.running.trial`).
"""

_TEXT = """
the and that for you with was are not from have this can his has but all will they out who their
more one said your which about were had would off man per other been like any them her there year
some when than over also part time what new get just into people its work she our him only how after
play could first act two back under may most did add again know need want see even these use because
now make then every look where years should right through way very being does down many call before
well much those such end long think own set show say good start made last count point used same
while game report still here world though take going hand between ear against high help found person
great sign run follow find team system lead around car law read real support really fact day both
three each says during too public war power few different state head another child since life
develop pass turn second something month without leg put quest never level art things might effect
allow feel result lot fun using big ask best number must direct open post come seem week far place
form stand next let little mark bus invest hard import test rest full care case less list top
home left better data build main including got interest keep class small plan percent camp pay
process program name four return called move group men cap current pop always women old near free
design change book away able country order million thing why school days health already friend least
tell talk until later view word cost enough give large win important business clear expect kind mean
past perform story season claim came within line project control air money family making bit happen
sit sure appear light water times grow company example actually ever tax major often human job
available record sing news following hour become took having product means deal side reason official
possible hold city children once night done working body whether author proper seen course event
short press doing protect thought question several given fund went meet games makes won love
complete account others young along according yet members among low likely president access known
early sent today market based strong problem social campaign months five players success present try
suggest land local political asked former close getting across believe together face value area key
anything mind future cut video net connect above amount either fail special black looking fire
almost study miss community media food comes single half started quick issue else consider taken
true ago added bad similar character reported type entire history live trying discuss self room fall
idea sound someone object player rather service nothing provide party exist house behind however sum
function front
"""
COMMON_WORDS = tuple(_TEXT.split())

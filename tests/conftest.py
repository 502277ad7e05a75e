"""What every test shares."""

from hypothesis import settings

#: A loaded machine is no fault of the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

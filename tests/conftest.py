"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# A busy machine must not fail a property: time is no promise of these tests.
settings.register_profile("tidebus", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tidebus")

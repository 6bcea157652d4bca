"""What holds for all tests: none of them is timed, property tests neither."""

from hypothesis import HealthCheck, settings

settings.register_profile("hadron", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hadron")

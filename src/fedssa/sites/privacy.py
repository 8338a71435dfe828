"""A site's owner chooses what its uploads carry and what it tells of itself; what makes no sense is refused."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from fedssa.core.noise import NoiseFrom
from fedssa.core.privacy import Privacy
from fedssa.core.sharing import Sharing
from fedssa.errors import SettingsError
from fedssa.settings.build import parse_section
from fedssa.sites.agreement import Federation

if TYPE_CHECKING:
    from fedssa.sites.site import Site


def privacy_of(site: "Site", federation: Federation) -> Privacy | None:
    """Returns the site's own choice, or else what was agreed on."""
    return federation.settings.privacy if site.privacy is None else site.privacy


def sharing_of(site: "Site", privacy: Privacy | None, noise_from: NoiseFrom) -> Sharing:
    """Returns what the site tells of itself. A simulation compares states with their digests, and nothing leaves it."""
    with_digest = privacy is None or noise_from == "seed"
    return Sharing(site.share_accuracy, site.share_counts, site.digits, with_digest)


def refuse_senseless(site: "Site", federation: Federation) -> None:
    """Raises SettingsError if these options do not fit together, or not with the method."""
    method, name = federation.settings.method, federation.settings.table["method"]["name"]
    if site.privacy is not None:
        if not isinstance(site.privacy, Privacy):
            raise SettingsError(f"privacy = {site.privacy!r}: should be a Privacy, as Privacy(clip=1.0, sigma=2.0)")
        parse_section("privacy", Privacy, asdict(site.privacy))
        if reason := method.refuses_noise():
            raise SettingsError(f"privacy: {name} {reason}; leave it out, or do not take part")
    if not site.share_counts and method.sends_counts:
        raise SettingsError(f"share_counts = False: {name} sends numbers of samples in its uploads; leave it out")
    if site.digits is not None and (type(site.digits) is not int or site.digits < 1):
        raise SettingsError(f"digits = {site.digits!r}: should be a whole number from 1")
    if site.per_class and not (site.share_accuracy and site.share_counts and site.digits is None):
        raise SettingsError("per_class = True: counts of each class tell accuracies and numbers exactly; leave it out")

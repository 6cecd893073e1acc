"""What is in an image, as SPDX 2.3: each Debian and Python package with version, origin and digest."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from images import oci
from images.debian import Package
from images.python import Wheel

#: Where it lies in the image, in a folder that SBOM readers and people find.
PLACE = "/usr/share/gpushare/sbom.spdx.json"


def describe(
    product: Wheel,
    wheels: Sequence[Wheel],
    natives: Sequence[Wheel],
    packages: Sequence[Package],
    release: str,
) -> bytes:
    """The document on the image of ``product``; the same packages give the same bytes.

    ``natives`` are what was compiled here: ``file`` says where it is in the image.
    """
    parts = [_of_wheel(one) for one in wheels] + [_of_native(one) for one in natives]
    parts += [_of_debian(one, release) for one in packages]
    whole = _of_wheel(product)
    moment = datetime.fromtimestamp(oci.MOMENT, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = hashlib.sha256(json.dumps([whole, parts], sort_keys=True).encode()).hexdigest()
    name = f"{product.name}-{product.version}"
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{name} container image",
        # A name, not an address: it must differ whenever the contents do.
        "documentNamespace": f"https://gpushare.dev/spdx/{name}-{digest}",
        "creationInfo": {"created": moment, "creators": ["Tool: gpushare-images"]},
        "documentDescribes": [whole["SPDXID"]],
        "packages": [whole, *parts],
        "relationships": [
            _relation("SPDXRef-DOCUMENT", "DESCRIBES", whole["SPDXID"]),
            *(_relation(whole["SPDXID"], "CONTAINS", one["SPDXID"]) for one in parts),
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"


def _of_wheel(wheel: Wheel) -> dict[str, Any]:
    name = re.sub(r"[-_.]+", "-", wheel.name).lower()
    return _of_built(
        wheel,
        kind="python",
        purl=f"pkg:pypi/{name}@{quote(wheel.version)}",
        purpose="APPLICATION" if wheel.name == "gpushare" else "LIBRARY",
    )


def _of_native(built: Wheel) -> dict[str, Any]:
    return _of_built(
        built,
        kind="native",
        purl=f"pkg:generic/{built.name}@{quote(built.version)}",
        purpose="LIBRARY",
        source="the checksum is that of the checksums of its files, in order of their names",
    )


def _of_built(built: Wheel, **more: str) -> dict[str, Any]:
    return _package(
        name=built.name,
        version=built.version,
        file=built.file,
        sha256=built.sha256,
        licence=built.licence,
        homepage=built.homepage,
        **more,
    )


def _of_debian(package: Package, release: str) -> dict[str, Any]:
    return _package(
        kind="debian",
        name=package.name,
        version=package.version,
        purl=f"pkg:deb/debian/{quote(package.name)}@{quote(package.version)}?arch={package.architecture}"
        f"&distro={release}",
        file=package.deb.name,
        sha256=package.sha256,
        # Debian says it file by file, in the copyright file that the image keeps.
        licence="",
        homepage=package.homepage,
        purpose="LIBRARY",
        source=f"built from Debian's source package {package.source}",
    )


def _package(
    *,
    kind: str,
    name: str,
    version: str,
    purl: str,
    file: str,
    sha256: str,
    licence: str,
    homepage: str,
    purpose: str,
    source: str = "",
) -> dict[str, Any]:
    described = {
        "SPDXID": f"SPDXRef-{kind}-{re.sub(r'[^A-Za-z0-9.-]', '-', name)}",
        "name": name,
        "versionInfo": version,
        "packageFileName": file,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "checksums": [{"algorithm": "SHA256", "checksumValue": sha256}],
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence or "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "primaryPackagePurpose": purpose,
        "externalRefs": [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}
        ],
    }
    if homepage.startswith(("http://", "https://")):
        described["homepage"] = homepage
    if source:
        described["sourceInfo"] = source
    return described


def _relation(one: str, how: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": how, "relatedSpdxElement": other}


def purls(document: bytes) -> Iterable[str]:
    """The package URLs that a document lists."""
    for one in json.loads(document)["packages"]:
        yield from (ref["referenceLocator"] for ref in one["externalRefs"])

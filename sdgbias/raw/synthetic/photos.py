"""Synthetic street photos, 640 x 360 RGB, drawn with Pillow from a cluster's wealth and urbanity.

With wealth the ground turns from dirt to paving, the road from a track to marked asphalt, houses
from thatched mud huts over tin-roofed brick to painted storeys with windows, and poles, street
lamps and cars appear. With urbanity there are more and taller houses and fewer trees. Sky, camera,
people and plants are nuisances. Readable at 96 x 48 pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from sdgbias.files import packaged_yaml
from sdgbias.raw.synthetic.latent import SyntheticCluster, keyed

WIDTH, HEIGHT = 640, 360
JPEG_QUALITY = 85
_FOCAL, _EYE = 330.0, 1.7  # pixels; camera height in metres
_YEAR_MS = 31_557_600_000

Colour = tuple[int, ...]
Point = tuple[float, float, float]  # metres: right, up, away
#: What is painted in one of several colours -> these.
_COLOURS: dict[str, list[list[int]]] = packaged_yaml("synthetic.yaml")["colours"]


def _mix(a: Colour, b: Colour, t: float) -> Colour:
    t = min(1.0, max(0.0, t))
    return tuple(round(one + (other - one) * t) for one, other in zip(a, b, strict=True))


class _Scene:
    """The camera, the cluster's look, and the picture; ``at`` projects metres to pixels."""

    def __init__(self, cluster: SyntheticCluster, rng: np.random.Generator) -> None:
        self.rng = rng
        self.rich = float(np.clip(cluster.level + rng.normal(0, 0.035), 0, 1))
        self.urban = float(np.clip(cluster.urbanity + rng.normal(0, 0.05), 0, 1))
        self.dry = cluster.aridity
        self.vx, self.hy = WIDTH / 2 + rng.uniform(-70, 70), 165 + rng.uniform(-12, 12)
        self.road = 1.6 + 2.6 * self.rich  # half width, metres
        self.paved = self.rich + rng.normal(0, 0.03) > 0.42
        self.image = _sky(self)
        self.pen = ImageDraw.Draw(self.image)

    def at(self, x: float, up: float, z: float) -> tuple[float, float]:
        scale = _FOCAL / z
        return self.vx + x * scale, self.hy + (_EYE - up) * scale

    def face(self, colour: Colour, *points: Point) -> None:
        self.pen.polygon([self.at(*point) for point in points], colour)

    def front(
        self, x: tuple[float, float], up: tuple[float, float], z: float, colour: Colour
    ) -> None:
        """A rectangle that faces the camera."""
        (x0, x1), (low, high) = x, up
        self.face(colour, (x0, low, z), (x1, low, z), (x1, high, z), (x0, high, z))

    def flank(
        self, x: float, up: tuple[float, float], z: tuple[float, float], colour: Colour
    ) -> None:
        """A rectangle along the road."""
        (low, high), (near, far) = up, z
        self.face(colour, (x, low, near), (x, low, far), (x, high, far), (x, high, near))

    def strip(self, x: tuple[float, float], z: tuple[float, float], colour: Colour) -> None:
        """A rectangle that lies on the ground."""
        (x0, x1), (near, far) = x, z
        self.face(colour, (x0, 0, near), (x1, 0, near), (x1, 0, far), (x0, 0, far))

    def line(self, thick: float, colour: Colour, *points: Point) -> None:
        """``thick``: in pixels at a distance of one metre."""
        width = max(1, int(thick / points[0][2]))
        self.pen.line([self.at(*point) for point in points], fill=colour, width=width)

    def disc(self, middle: Point, radius: float, flat: float = 1.0, **paint: Any) -> None:
        """A disc of ``radius`` metres that faces the camera, its height times ``flat``."""
        (x, y), r = self.at(*middle), radius * _FOCAL / middle[2]
        self.pen.ellipse((x - r, y - r * flat, x + r, y + r * flat), **paint)

    def pick(self, what: str) -> Colour:
        colours = _COLOURS[what]
        return tuple(colours[int(self.rng.integers(len(colours)))])


def _sky(s: _Scene) -> Image.Image:
    haze = s.rng.uniform(0, 1)
    top = np.array(_mix((88, 140, 206), (168, 182, 196), haze), np.float32)
    low = np.array(_mix((206, 222, 236), (222, 214, 198), haze * s.dry), np.float32)
    t = np.linspace(0, 1, HEIGHT, dtype=np.float32)[:, None, None] * (HEIGHT / s.hy)
    rows = np.clip(top + (low - top) * t, 0, 255).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(np.broadcast_to(rows, (HEIGHT, WIDTH, 3))))


def _ground(s: _Scene) -> None:
    soil = _mix((150, 112, 78), (182, 134, 92), s.dry)
    lawn = _mix((96, 132, 70), (134, 138, 88), s.dry)
    green = 0.55 * (1 - s.dry) * (1 - s.urban) + 0.45 * s.rich * (1 - 0.5 * s.urban)
    land = _mix(_mix(soil, lawn, green), (158, 156, 150), s.rich * s.urban)
    s.pen.rectangle((0, s.hy, WIDTH, HEIGHT), land)
    ridge = [(float(at), s.hy - s.rng.uniform(2, 26)) for at in range(0, WIDTH + 80, 80)]
    hills = _mix((104, 122, 100), (150, 136, 112), s.dry)
    s.pen.polygon([(0, s.hy + 1), *ridge, (WIDTH, s.hy + 1)], hills)
    if s.urban * s.rich > 0.3:  # skyline
        for _ in range(int(26 * s.urban * s.rich)):
            x, w = s.rng.uniform(0, WIDTH), s.rng.uniform(14, 34)
            h = s.rng.uniform(18, 34 + 70 * s.rich * s.urban)
            tone = _mix((150, 158, 170), (186, 190, 196), s.rng.random())
            s.pen.rectangle((x, s.hy - h, x + w, s.hy), tone)


def _road(s: _Scene) -> None:
    w, near, far = s.road, 2.2, 140.0
    if s.paved:
        if s.rich * s.urban > 0.2:  # pavements with a kerb
            for side in (-1, 1):
                s.strip((side * w, side * (w + 2.0)), (near, far), (186, 184, 178))
        tone = _mix((118, 110, 102), (72, 74, 78), (s.rich - 0.35) / 0.35)
        s.strip((-w, w), (near, far), tone)
        if s.rich > 0.52:
            for z in np.geomspace(2.6, 60, 11):
                s.strip((-0.1, 0.1), (z, z * 1.16), (238, 236, 226))
            for side in (-1, 1):
                x = side * (w - 0.3)
                s.strip((x - 0.08, x + 0.08), (near, far), (230, 228, 220))
        return
    dirt = _mix((176, 132, 92), (204, 164, 118), s.dry)
    s.face(dirt, (-w, 0, near), (w, 0, near), (w * 0.8, 0, far), (-w * 0.8, 0, far))
    for x in (-0.7, 0.7):  # wheel ruts
        rut = _mix(dirt, (110, 80, 56), 0.5)
        s.face(rut, (x - 0.25, 0, near), (x + 0.25, 0, near), (x, 0, 40))
    for _ in range(8):  # puddles and stones
        x, z, r = s.rng.uniform(-w, w), s.rng.uniform(3, 18), s.rng.uniform(0.15, 0.5)
        (x0, y0), (x1, _) = s.at(x - r, 0, z), s.at(x + r, 0, z)
        wet = _mix(dirt, (120, 96, 74), 0.6)
        s.pen.ellipse((x0, y0 - 20 * r / z, x1, y0 + 20 * r / z), wet)


def _windows(s: _Scene, x: tuple[float, float], z: float, floors: int, storey: float) -> None:
    """Windows on the face that looks at the camera, one row a floor."""
    glass = _mix((70, 60, 54), (92, 124, 152), (s.rich - 0.3) * 2)
    frame = (240, 238, 232) if s.rich > 0.55 else None
    span = x[1] - x[0]
    n = max(1, int(abs(span) / 2.6))
    for floor in range(floors):
        for i in range(n):
            a, b = x[0] + span * (i + 0.25) / n, x[0] + span * (i + 0.70) / n
            up = storey * floor + 1.0
            (left, low), (right, high) = s.at(min(a, b), up, z), s.at(max(a, b), up + 1.2, z)
            s.pen.rectangle((left, high, right, low), glass, frame)


def _hut(s: _Scene, x: float, side: int, z: float) -> None:
    """A round mud hut with a thatched cone."""
    r, wall, top = s.rng.uniform(1.6, 2.4), s.rng.uniform(1.5, 1.9), s.rng.uniform(3.3, 4.0)
    c = x + side * (r + 0.5)
    s.front((c - r, c + r), (0, wall), z, s.pick("mud"))
    s.front((c - 0.4, c + 0.4), (0, 1.4), z, (52, 38, 28))
    thatch = _mix((128, 106, 70), (104, 84, 54), s.rng.random())
    s.face(thatch, (c - r * 1.3, wall - 0.25, z), (c + r * 1.3, wall - 0.25, z), (c, top, z))


def _house(s: _Scene, x: float, side: int, z: float) -> None:
    """A box with a front towards the camera and a flank along the road; roof and storeys by wealth
    and urbanity."""
    wealth = s.rich + s.rng.normal(0, 0.05)
    if wealth < 0.2 or (wealth < 0.36 and s.urban < 0.6 and s.rng.random() < 0.85):
        _hut(s, x, side, z)
        return
    wall = s.pick("mud" if wealth < 0.3 else "brick" if wealth < 0.48 else "paint")
    floors = 1 + int(np.clip((wealth - 0.42) * 9 * s.urban, 0, 6) * s.rng.uniform(0.5, 1.0))
    floors = max(floors, 2) if wealth > 0.72 else floors
    storey = 2.4 + 0.6 * wealth
    width, depth = s.rng.uniform(3.5, 5) + 5 * wealth, s.rng.uniform(4, 6) + 4 * wealth
    h = floors * storey
    x1, back = x + side * width, z + depth
    s.flank(x, (0, h), (z, back), _mix(wall, (40, 36, 40), 0.25))
    s.front((x, x1), (0, h), z, wall)
    if wealth > 0.33:
        _windows(s, (x, x1), z, floors, storey)
        for floor in range(floors):  # and along the flank
            for zw in np.arange(z + 1, back - 1, 2.6).tolist():
                up = (storey * floor + 1.0, storey * floor + 2.2)
                s.flank(x, up, (zw, zw + 1.3), (66, 78, 92))
    door = x + side * width * 0.45
    s.front((door, door + side), (0, 2), z, _mix((66, 46, 34), (120, 70, 50), wealth))
    if floors >= 3 or (wealth > 0.6 and s.urban > 0.6):  # flat roof with a parapet
        s.front((x, x1), (h, h + 0.5), z, _mix(wall, (255, 255, 255), 0.3))
        return
    rise = 0.5 if wealth < 0.5 else 1.6
    tin = _mix((142, 96, 72), (196, 200, 204), (wealth - 0.28) / 0.25)
    roof = tin if wealth < 0.55 else _mix((178, 84, 58), (150, 66, 50), s.rng.random())
    mid, top = (x + x1) / 2, h + rise
    eaves, far_eaves = x - side * 0.4, x1 + side * 0.4
    s.face(_mix(roof, (20, 20, 20), 0.2), (eaves, h, z), (far_eaves, h, z), (mid, top, z))
    s.face(roof, (eaves, h, z), (mid, top, z), (mid, top, back), (eaves, h, back))


def _tree(s: _Scene, x: float, z: float) -> None:
    h = s.rng.uniform(3.0, 6.5)
    s.line(90, (92, 70, 50), (x, 0, z), (x, h * 0.6, z))
    leaf = _mix((58, 98, 50), (112, 116, 66), s.dry * s.rng.uniform(0.5, 1))
    for _ in range(3):
        middle = (x + s.rng.uniform(-0.8, 0.8), h * s.rng.uniform(0.65, 0.95), z)
        radius = s.rng.uniform(1.0, 1.8)
        s.disc(middle, radius, 0.8, fill=_mix(leaf, (30, 50, 26), s.rng.uniform(0, 0.4)))


def _poles(s: _Scene) -> None:
    """A power line on one side from middling wealth on, lamps on both when rich."""
    if s.rich + s.rng.normal(0, 0.03) > 0.36:
        x = (s.road + 2.3) * (1 if s.rng.random() < 0.5 else -1)
        depths = [4.5, 9, 16, 26, 42, 70]
        for z in depths:
            s.line(46, (78, 66, 56), (x, 0, z), (x, 7, z))
            s.line(30, (78, 66, 56), (x - 0.9, 6.6, z), (x + 0.9, 6.6, z))
        for dx in (-0.9, 0.9):
            s.line(1, (58, 56, 58), *((x + dx, 6.6, z) for z in (2.4, *depths)))
    if s.rich > 0.62:
        for z in (30, 17, 9.5):
            for side in (-1, 1):
                x = side * (s.road + 0.8)
                s.line(36, (120, 124, 130), (x, 0, z), (x, 6, z), (x - side * 1.6, 6.3, z))


def _car(s: _Scene, x: float, z: float) -> None:
    paint, w = s.pick("cars"), 0.9
    s.front((x - w, x + w), (0.3, 1.0), z, paint)
    roof, glass = _mix(paint, (30, 30, 34), 0.25), (46, 58, 72)
    for colour, foot, top, low, high in (
        (roof, w * 1, w * 0.75, 1.0, 1.55),
        (glass, w * 0.8, w * 0.62, 1.02, 1.45),
    ):
        corners = ((-foot, low), (foot, low), (top, high), (-top, high))
        s.face(colour, *((x + right, up, z) for right, up in corners))
    for side in (-1, 1):
        s.front((x + side * 0.5, x + side * 0.85), (0, 0.4), z, (22, 22, 24))
        s.front((x + side * 0.55, x + side * 0.85), (0.7, 0.85), z, (220, 60, 50))


def _bicycle(s: _Scene, x: float, z: float) -> None:
    for dx in (-0.5, 0.5):
        s.disc((x + dx, 0.33, z), 0.33, outline=(30, 28, 28), width=max(1, int(14 / z)))
    corners = ((-0.5, 0.33), (-0.1, 0.9), (0.4, 0.9), (0.5, 0.33))
    s.line(14, (60, 40, 40), *((x + right, up, z) for right, up in corners))


def _person(s: _Scene, x: float, z: float) -> None:
    corners = ((-0.22, 0), (0.22, 0), (0.2, 1.4), (-0.2, 1.4))
    s.face(s.pick("cloth"), *((x + right, up, z) for right, up in corners))
    s.disc((x, 1.57, z), 0.13, fill=(92, 64, 48))


def render_photo(cluster: SyntheticCluster, k: int) -> Image.Image:
    """The cluster's k-th street photo (from 0), RGB 640 x 360: the same place, another camera."""
    rng = keyed(cluster.seed, "photo", cluster.cname, cluster.k, k)
    s = _Scene(cluster, rng)
    _ground(s)
    _road(s)
    # (depth, kind, x, side), drawn from far to near
    things: list[tuple[float, int, float, int]] = []
    setback = s.road + 1.5 + 4.5 * (1 - s.urban) + (1.0 if s.rich > 0.5 else 0)
    for side in (-1, 1):
        z = rng.uniform(7, 10) + 4 * (1 - s.urban)
        while z < 75:
            things.append((z, 0, side * (setback + rng.uniform(0, 1 + 3 * (1 - s.urban))), side))
            z += (8 + 3 * s.rich + 16 * (1 - s.urban) ** 1.5) * rng.uniform(0.8, 1.3)
    for _ in range(int(rng.poisson(1 + 6 * (1 - s.urban) * (1.2 - 0.8 * s.dry)))):
        side = -1 if rng.random() < 0.5 else 1
        things.append((rng.uniform(6, 45), 1, side * (s.road + rng.uniform(2, 14)), side))
    for _ in range(int(rng.poisson(0.2 + 6.5 * max(0.0, s.rich - 0.32) * (0.4 + s.urban)))):
        side = -1 if rng.random() < 0.5 else 1
        things.append((rng.uniform(5, 32), 2, side * s.road * 0.55, side))
    if s.rich < 0.5 and rng.random() < 0.6:
        things.append((rng.uniform(5, 12), 3, rng.uniform(-1, 1), 1))
    for _ in range(int(rng.poisson(1.2 + 1.5 * s.urban))):
        side = -1 if rng.random() < 0.5 else 1
        things.append((rng.uniform(5, 22), 4, side * (s.road + rng.uniform(0.2, 1.6)), side))
    drawn_poles = False
    for z, kind, x, side in sorted(things, key=lambda t: -t[0]):
        if not drawn_poles and z < 12:
            _poles(s)
            drawn_poles = True
        if kind == 0:
            _house(s, x, side, z)
        else:
            (_tree, _car, _bicycle, _person)[kind - 1](s, x, z)
    if not drawn_poles:
        _poles(s)
    return s.image


def photo_records(cluster: SyntheticCluster) -> list[dict[str, object]]:
    """Metadata rows (id, DHSID_EA, path, captured_at in ms, lat, lon) of the cluster's 0-3 photos.

    As documented for SustainBench, photos lie within 0.1 degree and 3 years of the survey.
    """
    rows: list[dict[str, object]] = []
    for k in range(cluster.photos):
        rng = keyed(cluster.seed, "mapillary", cluster.cname, cluster.k, k)
        image_id = int(rng.integers(10**14, 10**15))
        when = round((cluster.year - 1970 + rng.uniform(-1, 2)) * _YEAR_MS)
        lat, lon = cluster.lat + rng.uniform(-0.02, 0.02), cluster.lon + rng.uniform(-0.02, 0.02)
        rows.append(
            {
                "id": image_id,
                "DHSID_EA": cluster.dhsid,
                "path": f"{cluster.cname}/{cluster.dhsid}/{image_id}.jpeg",
                "captured_at": when,
                "lat": round(lat, 6),
                "lon": round(lon, 6),
            }
        )
    return rows

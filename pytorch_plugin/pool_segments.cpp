#include "pytorch_plugin/pool_segments.h"

#include "firn/check.h"

namespace firn::pytorch {

namespace {
PoolSegments::Address address_of(const void* pointer) {
  return reinterpret_cast<PoolSegments::Address>(pointer);
}
}  // namespace

size_t PoolSegments::segment_bytes(size_t bytes) {
  const size_t size = rounded(bytes);
  if (!is_large(size)) return small_segment;
  if (size < segment_of_its_own) return large_segment;
  return (size + granule - 1) / granule * granule;
}

/// Counts the segment's inactive pieces in (+1) or out (-1) of the sums, around a change.
void PoolSegments::note_inactive(const Segment& segment, int sign) {
  if (segment.pieces.size() < 2) return;
  Inactive& sum = inactive_[segment.large];
  sum.pieces += sign * static_cast<int64_t>(segment.free_pieces);
  sum.bytes += sign * static_cast<int64_t>(segment.free_bytes);
}

void PoolSegments::list(Address base, Segment& segment, Pieces::iterator piece) {
  free_.insert({segment.large, segment.stream, piece->second.bytes, base + piece->first});
  ++segment.free_pieces;
  segment.free_bytes += piece->second.bytes;
}

void PoolSegments::unlist(Address base, Segment& segment, Pieces::iterator piece) {
  free_.erase({segment.large, segment.stream, piece->second.bytes, base + piece->first});
  --segment.free_pieces;
  segment.free_bytes -= piece->second.bytes;
}

void PoolSegments::add(void* address, size_t bytes, Stream stream, bool large) {
  const Address base = address_of(address);
  auto [made, fresh] = segments_.try_emplace(base);
  FIRN_CHECK(fresh, "segment %p is the pool's already", address);
  Segment& segment = made->second;
  segment.bytes = bytes;
  segment.stream = stream;
  segment.large = large;
  segment.pieces[0] = {bytes, 0, false};
  list(base, segment, segment.pieces.begin());
}

/// A piece that is not listed is cut to `bytes`; the rest is free.
void PoolSegments::cut(Address base, Segment& segment, Pieces::iterator piece, size_t bytes) {
  const size_t left = piece->second.bytes - bytes;
  piece->second.bytes = bytes;
  auto rest = segment.pieces.insert({piece->first + bytes, {left, 0, false}}).first;
  list(base, segment, rest);
}

void* PoolSegments::take(size_t bytes, Stream stream, bool whole) {
  const size_t size = rounded(bytes);
  const bool large = is_large(size);
  auto found = free_.lower_bound({large, stream, size, 0});
  if (found == free_.end() || std::get<0>(*found) != large || std::get<1>(*found) != stream)
    return nullptr;
  const Address address = std::get<3>(*found);
  auto at = --segments_.upper_bound(address);
  const Address base = at->first;
  Segment& segment = at->second;
  auto piece = segment.pieces.find(address - base);
  note_inactive(segment, -1);
  unlist(base, segment, piece);
  const size_t left = piece->second.bytes - size;
  if (!whole && (large ? left > small_most : left >= unit)) cut(base, segment, piece, size);
  piece->second.used = true;
  piece->second.requested = bytes;
  note_inactive(segment, 1);
  return reinterpret_cast<void*>(address);
}

void PoolSegments::give(void* pointer) {
  const Address address = address_of(pointer);
  auto at = --segments_.upper_bound(address);
  const Address base = at->first;
  Segment& segment = at->second;
  auto piece = segment.pieces.find(address - base);
  FIRN_CHECK(piece != segment.pieces.end() && piece->second.used, "%p is not in use", pointer);
  note_inactive(segment, -1);
  piece->second.used = false;
  piece->second.requested = 0;
  if (auto next = std::next(piece); next != segment.pieces.end() && !next->second.used) {
    unlist(base, segment, next);
    piece->second.bytes += next->second.bytes;
    segment.pieces.erase(next);
  }
  if (piece != segment.pieces.begin() && !std::prev(piece)->second.used) {
    auto before = std::prev(piece);
    unlist(base, segment, before);
    before->second.bytes += piece->second.bytes;
    segment.pieces.erase(piece);
    piece = before;
  }
  list(base, segment, piece);
  note_inactive(segment, 1);
}

PoolSegments::Segments::const_iterator PoolSegments::around(const void* pointer) const {
  const Address address = address_of(pointer);
  auto at = segments_.upper_bound(address);
  if (at == segments_.begin()) return segments_.end();
  --at;
  return address < at->first + at->second.bytes ? at : segments_.end();
}

const PoolSegments::Piece* PoolSegments::used(const void* pointer) const {
  auto at = around(pointer);
  if (at == segments_.end()) return nullptr;
  auto piece = at->second.pieces.find(address_of(pointer) - at->first);
  return piece != at->second.pieces.end() && piece->second.used ? &piece->second : nullptr;
}

PoolSegments::Segments PoolSegments::take_unused() {
  Segments out;
  for (auto at = segments_.begin(); at != segments_.end();) {
    auto next = std::next(at);
    if (at->second.free_bytes == at->second.bytes) {
      unlist(at->first, at->second, at->second.pieces.begin());
      out.insert(segments_.extract(at));
    }
    at = next;
  }
  return out;
}

void PoolSegments::cut_like(Address base, const Segment& like) {
  Segment& segment = segments_.at(base);
  FIRN_CHECK(segment.free_bytes == segment.bytes && segment.bytes == like.bytes,
             "segment %llx is in use", (unsigned long long)base);
  unlist(base, segment, segment.pieces.begin());
  segment.pieces = like.pieces;
  for (auto piece = segment.pieces.begin(); piece != segment.pieces.end(); ++piece)
    if (!piece->second.used) list(base, segment, piece);
  note_inactive(segment, 1);
}

}  // namespace firn::pytorch

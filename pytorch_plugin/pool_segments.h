// The memory of one private pool: segments, cut into pieces and joined again by the rules of
// PyTorch's own allocator, so that a CUDA graph takes no more of it than natively.
//
// Owns: the list of segments and their pieces, not the memory. No lock, no driver call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

namespace firn::pytorch {

class PoolSegments {
 public:
  using Stream = void*;
  static constexpr size_t unit = 512;                   // pieces are multiples of it
  static constexpr size_t small_most = 1u << 20;        // larger pieces are of large segments
  static constexpr size_t small_segment = 2u << 20;
  static constexpr size_t large_segment = 20u << 20;    // for pieces below segment_of_its_own
  static constexpr size_t segment_of_its_own = 10u << 20;
  static constexpr size_t granule = 2u << 20;           // of segments for one piece

  struct Piece {
    size_t bytes = 0, requested = 0;
    bool used = false;
  };
  struct Segment {
    size_t bytes = 0;
    Stream stream = nullptr;
    bool large = false;
    std::map<size_t, Piece> pieces;  // by offset, without gaps; of two neighbours one is used
    size_t free_pieces = 0, free_bytes = 0;
  };
  using Address = uintptr_t;
  using Segments = std::map<Address, Segment>;

  static size_t rounded(size_t bytes) { return (bytes + unit - 1) / unit * unit; }
  static bool is_large(size_t bytes) { return rounded(bytes) > small_most; }
  /// The bytes of a new segment for such a piece.
  static size_t segment_bytes(size_t bytes);

  /// The smallest free piece of the stream that holds `bytes`, at the lowest address, cut to its
  /// size where enough is left (`whole`: never); or null.
  void* take(size_t bytes, Stream stream, bool whole = false);
  void add(void* address, size_t bytes, Stream stream, bool large);
  /// Joins the piece with its free neighbours. It is in use.
  void give(void* address);

  /// The piece in use that begins there, or null.
  const Piece* used(const void* address) const;
  /// The segment around an address, or end().
  Segments::const_iterator around(const void* address) const;
  const Segments& all() const { return segments_; }
  /// Removes and returns the segments that have nothing in use.
  Segments take_unused();

  /// Free pieces in segments that are cut: [0] of small segments, [1] of large ones.
  struct Inactive {
    int64_t pieces = 0, bytes = 0;
  };
  const Inactive& inactive(bool large) const { return inactive_[large]; }

  /// Cuts one of the pool's segments, which has nothing in use, as `like` is cut, with the same
  /// pieces in use.
  void cut_like(Address address, const Segment& like);

 private:
  using Key = std::tuple<bool, Stream, size_t, Address>;
  using Pieces = std::map<size_t, Piece>;

  void list(Address base, Segment& segment, Pieces::iterator piece);
  void unlist(Address base, Segment& segment, Pieces::iterator piece);
  void cut(Address base, Segment& segment, Pieces::iterator piece, size_t bytes);
  void note_inactive(const Segment& segment, int sign);

  Segments segments_;
  std::set<Key> free_;
  Inactive inactive_[2];
};

}  // namespace firn::pytorch

// cuTensorMapEncodeTiled without a link to libcuda, and with a memory.
//
// CUTLASS builds tensor maps with this driver function. Left to itself it looks the function up by
// name on every call, three times a launch; told to call it directly
// (CUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL) it would need libcuda at link time. So the library
// defines the function itself, hidden by the version script, and forwards to the driver's, looked
// up once.
//
// A map is a pure function of the arguments it is made from, so maps are remembered by all of them:
// a tensor freed and another allocated at its address has the same map if it has the same extents,
// and another key if it has not. The memory is small, one per thread (so it needs no lock), and a
// newer map takes the place of an older one with the same hash.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, or null where there is no driver.
Encode look_up() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  constexpr unsigned kSince = 12000;  // CUDA 12.0 introduced it
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince, cudaEnableDefault,
                                       &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<Encode>(found);
}

constexpr uint32_t kMaxRank = 5;

// Every argument as a word: enumerators and rank, the address, then what depends on the rank, zero
// beyond it.
struct Key {
  static constexpr int kWords = 2 + 4 * kMaxRank;
  std::array<uint64_t, kWords> words{};

  bool operator==(Key const& other) const { return words == other.words; }

  uint64_t hash() const {
    uint64_t sum = 0;
    for (uint64_t word : words) {
      sum = (sum ^ word) * 0x9E3779B97F4A7C15u;
      sum ^= sum >> 29;
    }
    return sum;
  }
};

struct Remembered {
  Key key;
  CUtensorMap map{};
};

constexpr size_t kRemembered = 256;  // a power of two; 80 KB a thread

Remembered& place_of(Key const& key) {
  static thread_local std::array<Remembered, kRemembered> places;
  return places[key.hash() % kRemembered];
}

}  // namespace

extern "C" CUresult CUDAAPI cuTensorMapEncodeTiled(
    CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
    cuuint64_t const* extents, cuuint64_t const* strides, cuuint32_t const* box,
    cuuint32_t const* element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  static Encode const encode = look_up();
  if (encode == nullptr) {
    return CUDA_ERROR_NOT_FOUND;
  }
  if (rank == 0 || rank > kMaxRank) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Key key;
  uint64_t options = rank;  // never 0, so that no key equals that of an empty place
  for (unsigned option : {unsigned{type}, unsigned{interleave}, unsigned{swizzle},
                          unsigned{promotion}, unsigned{fill}}) {
    options = options << 8 | option;
  }
  key.words[0] = options;
  key.words[1] = reinterpret_cast<uint64_t>(address);
  uint64_t* word = &key.words[2];
  for (uint32_t i = 0; i < rank; ++i) {
    *word++ = extents[i];
    *word++ = box[i];
    *word++ = element_strides[i];
    *word++ = i + 1 < rank ? strides[i] : 0;
  }
  Remembered& place = place_of(key);
  if (!(place.key == key)) {
    CUtensorMap fresh{};
    CUresult const status =
        encode(&fresh, type, rank, address, extents, strides, box, element_strides, interleave,
               swizzle, promotion, fill);
    if (status != CUDA_SUCCESS) {
      return status;
    }
    place = {key, fresh};
  }
  *map = place.map;
  return CUDA_SUCCESS;
}

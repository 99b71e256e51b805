// The rules that every argument struct of swiglu.h shares, each with its sentence.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "host/error.hpp"

namespace swiglu {

// Tile and cluster rounding of the 32-bit extents in the tile scheduler must not overflow.
inline constexpr int64_t kMaxExtent = (int64_t{1} << 31) - 1024;
inline constexpr int64_t kMaxColumns = (int64_t{1} << 30) - 1024;
// A tensor map holds strides below 2^40 bytes.
inline constexpr int64_t kMaxStride = int64_t{1} << 39;
// Keeps the number of tiles below 2^31.
inline constexpr int64_t kMaxOutputs = int64_t{1} << 43;
inline constexpr int64_t kAlignment = 8;  // 16 bytes of 2-byte elements

Error refuse(swiglu_status_t status, char const* argument, std::string const& rule,
             std::string const& value);
Error check_range(char const* argument, int64_t value, int64_t low, int64_t high);
Error check_multiple(swiglu_status_t status, char const* argument, int64_t value);
Error check_enum(char const* argument, int32_t value, std::initializer_list<int32_t> allowed);
Error check_pointer(char const* argument, void const* pointer);

// Elements from one row of `columns` elements to the next.
Error check_stride(char const* argument, int64_t stride, int64_t columns);

// Extents of the output, and of the sum.
Error check_output(int64_t m, int64_t n);
Error check_depth(int64_t k);

// A small-M configuration's CTAs are one dimension of a grid.
Error check_grid(swiglu_config_t const& config, int64_t m, int64_t n);

}  // namespace swiglu

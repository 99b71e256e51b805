// The order in which a persistent kernel's clusters of CTAs work through the output tiles.
//
// Tiles are cut into groups along one extent (the minor one); a group is walked through along the
// other (major) extent, its own tiles innermost, and every second group backwards:
//
//   along N, groups of 2:   0 2 4 6       minor = M, major = N: two rows of tiles at a time are
//                           1 3 5 7       resident in L2 while the weights stream past them
//                           e c a 8
//                           f d b 9
//
// CUTLASS's own scheduler knows groups of 1, 2, 4 and 8 only, and rounds both extents up to whole
// groups, computing the tiles it added. Here a group has any size and the last one is smaller.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cutlass/fast_math.h"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"

namespace swiglu::device {

// The tag that makes GemmUniversal use the scheduler below.
struct GroupedRaster {};

template <class ClusterShape>
class RasterScheduler : public cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90 {
  using Base = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90;

 public:
  using Base::Arguments;  // max_swizzle_size is the size of a group, in clusters
  using Base::RasterOrder;
  using Base::WorkTileInfo;

  static constexpr int kClusterM = cute::size<0>(ClusterShape{});
  static constexpr int kClusterN = cute::size<1>(ClusterShape{});

  // Counted in clusters; host validation keeps their number below 2^31. The kernel layers pass
  // Params on to functions of the base.
  struct Params : Base::Params {
    int total = 0;
    int major_extent = 0;
    int last_group = 0;
    cutlass::FastDivmod by_group{};
    cutlass::FastDivmod in_group{};
    cutlass::FastDivmod in_last_group{};
  };

  template <class ProblemShape, class TileShape>
  static Params to_underlying_arguments(ProblemShape problem_shape, TileShape tile_shape,
                                        ClusterShape, cutlass::KernelHardwareInfo const&,
                                        Arguments const& arguments, void* = nullptr, uint32_t = 1,
                                        uint32_t = 1) {
    int const m = clusters(cute::get<0>(problem_shape), cute::size<0>(tile_shape), kClusterM);
    int const n = clusters(cute::get<1>(problem_shape), cute::size<1>(tile_shape), kClusterN);
    bool const along_m = arguments.raster_order == RasterOrderOptions::AlongM;
    int const minor = along_m ? n : m;
    int const group = std::clamp(arguments.max_swizzle_size, 1, minor);
    Params params;
    params.raster_order_ = along_m ? RasterOrder::AlongM : RasterOrder::AlongN;
    params.total = m * n;
    params.major_extent = along_m ? m : n;
    params.last_group = (minor - 1) / group;
    params.by_group = cutlass::FastDivmod(group * params.major_extent);
    params.in_group = cutlass::FastDivmod(group);
    params.in_last_group = cutlass::FastDivmod(minor - params.last_group * group);
    return params;
  }

  // As many clusters as the device holds at once, at most one for each there is to compute.
  static dim3 grid_shape(Params const& params, int max_clusters, int num_sms) {
    int const allowed = std::max(1, std::min(max_clusters, num_sms / (kClusterM * kClusterN)));
    return dim3(kClusterM * std::min(params.total, allowed), kClusterN, 1);
  }

  CUTLASS_DEVICE explicit RasterScheduler(Params const& params)
      : params_(params),
        current_(static_cast<int>(blockIdx.x) / kClusterM),
        step_(static_cast<int>(gridDim.x) / kClusterM) {}

  CUTLASS_DEVICE WorkTileInfo initial_work_tile_info(ClusterShape) { return get_current_work(); }

  CUTLASS_DEVICE WorkTileInfo get_current_work() const { return tile(current_); }

  CUTLASS_DEVICE void advance_to_next_work(uint32_t count = 1) {
    current_ += step_ * static_cast<int>(count);
  }

  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo) {
    advance_to_next_work();
    return cute::make_tuple(get_current_work(), true);
  }

  template <class Pipeline, class PipelineState>
  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo work, Pipeline&, PipelineState) {
    return fetch_next_work(work);
  }

 private:
  static int clusters(int extent, int tile, int cluster) {
    int const tiles = (extent - 1) / tile + 1;
    return (tiles - 1) / cluster + 1;
  }

  // The tile of this CTA in cluster number `cluster` of the order above.
  CUTLASS_DEVICE WorkTileInfo tile(int cluster) const {
    if (cluster >= params_.total) {
      return WorkTileInfo::invalid_work_tile();
    }
    int group;
    int rest;
    int major;
    int minor;
    params_.by_group(group, rest, cluster);
    if (group < params_.last_group) {
      params_.in_group(major, minor, rest);
    } else {
      params_.in_last_group(major, minor, rest);
    }
    minor += group * params_.in_group.divisor;
    if (group % 2 == 1) {
      major = params_.major_extent - 1 - major;
    }
    bool const along_m = params_.raster_order_ == RasterOrder::AlongM;
    int const m = along_m ? major : minor;
    int const n = along_m ? minor : major;
    return {m * kClusterM + static_cast<int>(blockIdx.x) % kClusterM,
            n * kClusterN + static_cast<int>(blockIdx.y), 0, true};
  }

  Params const& params_;
  int current_;
  int step_;
};

}  // namespace swiglu::device

namespace cutlass::gemm::kernel::detail {

template <class TileShape, class ClusterShape, uint32_t Stages>
struct TileSchedulerSelector<swiglu::device::GroupedRaster, arch::Sm90, TileShape, ClusterShape,
                             Stages> {
  using Scheduler = swiglu::device::RasterScheduler<ClusterShape>;
};

}  // namespace cutlass::gemm::kernel::detail

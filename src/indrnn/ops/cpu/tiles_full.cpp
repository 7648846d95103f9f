// The loops for float32 and float64: by far the most of the compiler's work.

#include "passes.h"

namespace indrnn {

INDRNN_DEFINE_TILES(float, float)
INDRNN_DEFINE_TILES(double, double)

}  // namespace indrnn

// The authors' vc-GMM-iso on rows of a binary file (their own program reads text).
//
//   g++ -DNDEBUG -std=c++14 -O3 -march=native -I BLAZE -I vc-GMM/code-example \
//       vcgmm_authors.cpp -lpthread -o PROGRAM
//   PROGRAM ROWS N D COMPONENTS CORESET(0: all rows) CANDIDATES NEIGHBOURS SEED MEANS
//
// Prints CPU seconds (coreset, seeding and iterations) and writes variance and means, float64.
#include <cstdint>
#include <ctime>
#include <fstream>
#include <iostream>
#include <random>
#include <vector>

#include "include/afkmc2.hpp"
#include "include/k-means-lwcs.hpp"
#include "include/vc-gmm.hpp"
#include "include/fit.hpp"

int main(int, char** a) {
    const std::size_t n = std::stoul(a[2]), d = std::stoul(a[3]), k = std::stoul(a[4]);
    const std::size_t m = std::stoul(a[5]), c = std::stoul(a[6]), g = std::stoul(a[7]);
    std::size_t seed = std::stoul(a[8]);
    std::vector<float> raw(n * d);
    std::ifstream(a[1], std::ios::binary).read(reinterpret_cast<char*>(raw.data()), 4 * n * d);
    using Rows = blaze::DynamicMatrix<double, blaze::rowMajor>;
    Rows all(n, d), drawn;
    for (std::size_t i = 0; i < n; i++)
        for (std::size_t f = 0; f < d; f++) all(i, f) = raw[i * d + f];
    const std::clock_t begun = std::clock();
    std::mt19937_64 mt;
    mt.seed(seed++);
    mt.discard(1000);
    blaze::DynamicVector<double> weights(m ? m : n, 1.0), priors(k, 1.0 / k);
    if (m) {
        drawn.resize(m, d);
        k_means_lwcs(all, drawn, weights, mt);
    }
    Rows means(k, d);
    double variance;
    fit(m ? drawn : all, weights, means, priors, seed, variance, c, g, false, 20, 1e-4, 1);
    std::cout << "seconds " << double(std::clock() - begun) / CLOCKS_PER_SEC << std::endl;
    std::ofstream out(a[9], std::ios::binary);
    auto put = [&](double v) { out.write(reinterpret_cast<const char*>(&v), sizeof v); };
    put(variance);
    for (std::size_t i = 0; i < k; i++)
        for (std::size_t f = 0; f < d; f++) put(means(i, f));
}

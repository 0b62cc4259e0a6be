"""Initial centres, and the weighted samples from which some are drawn.

==================================  =====================  ========================================
start                               file                   used by
==================================  =====================  ========================================
``init=``: random, k-means++,       ``seeding``            every algorithm with ``init``;
greedy, k-means||, and the next two                        ``partial_fit``
``init="afk-mc2"``                  ``afk_mc2``            ``seeding``; vc-GMM as published
``init="two-level"``                ``samples``            ``seeding``
k-means++, or two levels for many   ``seeding``            nested batches, incremental Lloyd, and
clusters, on a held sample                                 the truncated search on sparse rows
two levels on a sample, without     ``samples``            truncated search, above 32 clusters;
drawing by D²                                              vc-GMM's coarse centres
best of several greedy k-means++    ``samples``            truncated search, up to 32 clusters
distinct rows, or rounds by D²      ``samples``            truncated search, ``seeding``
lightweight coreset                 ``coresets``           vc-GMM, samples of partition paths,
                                                           ``largek ingest``
S_1 of Ordin and Bagirov             ``auxiliary_points``   DCD-Bundle as published
rows by exact weight                ``weighted_sampling``  ``coresets``, ``afk_mc2``
==================================  =====================  ========================================
"""
